package main

import "testing"

// TestRemedy: each condition has the command that helps or shows more, ready to be pasted.
func TestRemedy(t *testing.T) {
	for _, c := range []struct{ reason, object, want string }{
		{"CORRUPTION", "files/docs/a", "client put GOOD-COPY docs/a"},
		{"CORRUPTION", "files/it's here", `client put GOOD-COPY 'it'\''s here'`},
		{"CORRUPTION", "metadata/extents", "engine check"},
		{"SYNC_FAILED", "files/-rf", "client put GOOD-COPY '-rf'"},
		{"DEVICE_FAILED", "devices/1", "client device replace 1 PATH"},
		{"DEVICE_MISSING", "devices/1", "client device replace 1 PATH"},
		{"DEVICE_MISSING", "store", "client device ls"},
		{"DEGRADED", "store", "client device ls"},
		{"ZONE_FAILED", "devices/0/zones/7", "client zones"},
		{"ZONE_NOT_RECLAIMABLE", "devices/0/zones/7", "client scrub start -B, then client scrub findings"},
		{"METADATA_SPACE", "metadata", "client df"},
		{"READ_ONLY", "store", "engine check"},
		{"LABEL_DAMAGED", "devices/0", "engine check"},
		{"OF_A_LATER_VERSION", "store", ""},
	} {
		if got := remedy(conditionJSON{Reason: c.reason, Object: c.object}); got != c.want {
			t.Errorf("%s of %s: %q, want %q", c.reason, c.object, got, c.want)
		}
	}
}

func TestShellWord(t *testing.T) {
	for name, want := range map[string]string{
		"a": "a", "a/b-c_d.e": "a/b-c_d.e", "": "''", "a b": "'a b'", "$(rm)": "'$(rm)'", "a'b": `'a'\''b'`, "-n": "'-n'", "ü": "'ü'",
		"a\nb": "'a\nb'", "a=b:c@d,e+f%": "a=b:c@d,e+f%", "~": "'~'", "*": "'*'",
	} {
		if got := shellWord(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

// TestWrongs: to know is not wrong; a store that takes no changes is, whatever it says of itself.
func TestWrongs(t *testing.T) {
	of := func(readOnly bool, severities ...string) string {
		i := infoJSON{ReadOnly: readOnly}
		for _, s := range severities {
			i.Conditions = append(i.Conditions, conditionJSON{Severity: s})
		}
		return wrongs(i)
	}
	for _, c := range []struct{ got, want string }{
		{of(false), ""}, {of(false, "info"), ""}, {of(false, "warning"), "1 warning"}, {of(false, "error", "error", "warning"), "2 errors, 1 warning"},
		{of(true), "the store is read-only"}, {of(true, "error"), "1 error"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
