package errdefs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
)

func TestKindSurvivesWrapping(t *testing.T) {
	base := New(Corruption, ReasonCorruption, "store.Node", "node 7", "bad checksum")
	err := fmt.Errorf("outer: %w", base)
	if KindOf(err) != Corruption || !Is(err, Corruption) || Is(err, Device) {
		t.Fatalf("kind of %v is %v", err, KindOf(err))
	}
	outer := Wrap(Internal, "", "engine.Get", "a", err)
	if KindOf(outer) != Internal {
		t.Fatalf("the outermost kind must win, got %v", KindOf(outer))
	}
	if ReasonOf(outer) != ReasonCorruption {
		t.Fatalf("reason lost: %q", ReasonOf(outer))
	}
	if Wrap(Device, "", "x", "y", nil) != nil {
		t.Fatal("wrapping nil must be nil")
	}
}

func TestKindOfPlainErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Kind
	}{
		{nil, Internal},
		{errors.New("x"), Internal},
		{fmt.Errorf("a: %w", context.Canceled), Canceled},
		{context.DeadlineExceeded, DeadlineExceeded},
		{Wrap(NoSpace, ReasonNoSpace, "a", "b", context.DeadlineExceeded), NoSpace},
	} {
		if got := KindOf(c.err); got != c.want {
			t.Errorf("KindOf(%v) = %v, want %v", c.err, got, c.want)
		}
	}
	if Is(nil, Internal) {
		t.Error("nil is no error of any kind")
	}
}

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{New(NotFound, "", "engine.Get", "file a", ""), "engine.Get file a: not found"},
		{New(Device, "", "zone.Append", "zone 3", "refused"), "zone.Append zone 3: refused"},
		{&Error{Op: "x", Err: errors.New("why")}, "x: why"},
		{&Error{Op: "x", Msg: "m", Err: errors.New("why")}, "x: m: why"},
		{Invalid("engine.Read", "offset", "negative"), "engine.Read: negative"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestSentence(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("plain"), "plain"},
		{New(Device, "", "zone.Open", "zone 3", "it does not answer"), "zone 3: it does not answer"},
		{New(NotFound, "", "filedev.Open", "/a/b", "there is no device file /a/b"), "there is no device file /a/b"},
		{New(NotFound, "", "op", "file a", ""), "file a: not found"},
		{Wrap(Device, "", "op", "/a/b", errors.New("no space left")), "/a/b: no space left"},
		{Wrap(Device, "", "op", "", New(Device, "", "inner", "zone 3", "is full")), "zone 3: is full"},
		{fmt.Errorf("a: %w", New(Device, "", "zone.Open", "zone 3", "is full")), "a: zone 3: is full"},
		{Wrap(Device, "", "op", "file a", fmt.Errorf("b: %w", New(Device, "", "inner", "", "is full"))), "file a: b: is full"},
		{&Error{Op: "op", Msg: "cannot be made", Err: errors.New("no space left")}, "cannot be made"},
		{fmt.Errorf("folder: %w", fs.ErrPermission), "folder: permission denied"},
	} {
		if got := Sentence(c.err); got != c.want {
			t.Errorf("%v is said as %q, want %q", c.err, got, c.want)
		}
	}
}

func TestEveryKindHasAName(t *testing.T) {
	for k := Internal; k <= DeadlineExceeded; k++ {
		if k.String() == "unknown kind" {
			t.Errorf("kind %d has no name", k)
		}
	}
	if Kind(200).String() != "unknown kind" {
		t.Error("an unknown kind must say so")
	}
}
