package main

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc/codes"

	"github.com/shingle-store/shingle/api/client/clienttest"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// TestScripts runs what is in testdata/script, each against an engine in memory of its own:
//
//	client [=CODE] [<FILE] ARG...   runs the program in this process; CODE is its exit status, 0 unless given
//	store NAME TEXT                 makes a file in the store
//	holds NAME TEXT                 fails unless a file in the store holds this
//	bad NAME                        makes reads of the file fail their checksum
//	condition SEVERITY REASON OBJECT MESSAGE ADVICE
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			s := clienttest.New(env.T().(testing.TB))
			env.Values[serverKey{}] = s
			env.Setenv("ADDR", s.Addr)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"client": scriptClient, "store": scriptStore, "holds": scriptHolds, "bad": scriptBad, "condition": scriptCondition,
		},
	})
}

type serverKey struct{}

func scriptServer(ts *testscript.TestScript) *clienttest.Server {
	return ts.Value(serverKey{}).(*clienttest.Server)
}

func scriptClient(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("say which exit status: client =1 ...")
	}
	want, stdin := exitOK, ""
	for len(args) > 0 {
		if code, ok := strings.CutPrefix(args[0], "="); ok {
			n, err := strconv.Atoi(code)
			ts.Check(err)
			want = n
		} else if file, ok := strings.CutPrefix(args[0], "<"); ok {
			stdin = strings.TrimSuffix(ts.ReadFile(file), "\n") // which every file of a script ends in
		} else {
			break
		}
		args = args[1:]
	}
	env := func(k string) string {
		if k == addrEnv {
			return scriptServer(ts).Addr
		}
		return ""
	}
	var out, errs bytes.Buffer
	// The program must not depend on where this process runs, so scripts name local files by $WORK.
	code := run(context.Background(), streams{in: strings.NewReader(stdin), out: &out, err: &errs}, env, args)
	_, _ = ts.Stdout().Write(out.Bytes())
	_, _ = ts.Stderr().Write(errs.Bytes())
	if code != want {
		ts.Fatalf("exit %d, want %d\n%s%s", code, want, out.String(), errs.String())
	}
	if code != exitOK && strings.Count(errs.String(), "\n") != strings.Count(errs.String(), "client: ") {
		ts.Fatalf("an error is one line: %q", errs.String())
	}
}

func scriptStore(ts *testscript.TestScript, _ bool, args []string) {
	scriptServer(ts).Put(args[0], []byte(args[1]))
}

func scriptHolds(ts *testscript.TestScript, neg bool, args []string) {
	data, _, ok := scriptServer(ts).Data(args[0])
	switch {
	case neg && ok:
		ts.Fatalf("%s is there", args[0])
	case !neg && (!ok || string(data) != args[1]):
		ts.Fatalf("%s holds %q, want %q", args[0], data, args[1])
	}
}

func scriptBad(ts *testscript.TestScript, _ bool, args []string) {
	scriptServer(ts).Faults.Read = func(r *shinglev1.ReadResponse) error {
		if r.GetFile().GetName() != args[0] {
			return nil
		}
		return clienttest.Errorf(codes.DataLoss, "CORRUPTION", nil, "bad", &shinglev1.Corruption{
			Name: args[0], Length: 4096, Zone: &shinglev1.ZoneRef{Device: "0", Zone: 17},
		})
	}
}

func scriptCondition(ts *testscript.TestScript, _ bool, args []string) {
	s := scriptServer(ts)
	s.Conditions = append(s.Conditions, &shinglev1.Condition{
		Severity: shinglev1.Severity(shinglev1.Severity_value["SEVERITY_"+args[0]]), Reason: args[1], Object: args[2],
		Message: args[3], Advice: args[4],
	})
}
