package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// One class of one kind is what the table above says already; of several each has a line.
func TestDfByClass(t *testing.T) {
	data := &shinglev1.ClassSpace{
		Class: shinglev1.BlockGroupClass_BLOCK_GROUP_CLASS_DATA, BlockGroups: 19, Capacity: 1900 << 20, Used: 1000 << 20, Free: 500 << 20,
		ZoneUnusable: 300 << 20, Pending: 60 << 20, Quarantined: 40 << 20,
	}
	small := &shinglev1.ClassSpace{
		Class: shinglev1.BlockGroupClass_BLOCK_GROUP_CLASS_DATA, Conventional: true, BlockGroups: 3, Capacity: 300 << 20, Used: 100 << 20, Free: 200 << 20,
	}
	for _, c := range []struct {
		classes []*shinglev1.ClassSpace
		want    string
	}{
		{nil, ""},
		{[]*shinglev1.ClassSpace{data}, ""},
		{[]*shinglev1.ClassSpace{data, small}, `
block groups  zones         number  capacity      used     free  unusable   pending  quarantined
data          sequential        19  1.86 GiB  0.98 GiB  500 MiB   300 MiB  60.0 MiB     40.0 MiB
data          conventional       3   300 MiB   100 MiB  200 MiB       0 B       0 B          0 B
`},
	} {
		var b strings.Builder
		classes := classesToJSON(&client.Usage{Classes: c.classes})
		if err := classesText(&b, classes); err != nil {
			t.Fatal(err)
		}
		if b.String() != c.want {
			t.Errorf("got\n%s\nwant\n%s", b.String(), c.want)
		}
	}
	out, err := json.Marshal(usageToJSON(&client.Usage{Classes: []*shinglev1.ClassSpace{small}}, 1))
	want := `"classes":[{"class":"data","conventional":true,"block_groups":3,"capacity_bytes":314572800,"used_bytes":104857600,` +
		`"free_bytes":209715200,"zone_unusable_bytes":0,"pending_bytes":0,"quarantined_bytes":0}]`
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v %s", err, out)
	}
}
