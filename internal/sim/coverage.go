package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Coverage counts what runs have met, by name. It may be shared by several goroutines.
type Coverage struct {
	mu sync.Mutex
	n  map[string]int
}

// NewCoverage returns one that has counted nothing.
func NewCoverage() *Coverage { return &Coverage{n: map[string]int{}} }

func (c *Coverage) add(name string, n int) {
	c.mu.Lock()
	c.n[name] += n
	c.mu.Unlock()
}

// Count returns how often something was met.
func (c *Coverage) Count(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[name]
}

// Sum returns how often anything was met whose name begins so.
func (c *Coverage) Sum(prefix string) (sum int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, v := range c.n {
		if strings.HasPrefix(k, prefix) {
			sum += v
		}
	}
	return sum
}

// Merge adds what another has counted.
func (c *Coverage) Merge(o *Coverage) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, v := range o.n {
		c.add(k, v)
	}
}

// String returns a line for each first word of the names, with the counts of what follows it.
func (c *Coverage) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines, heads := map[string][]string{}, []string{}
	for _, k := range slices.Sorted(maps.Keys(c.n)) {
		head, rest, _ := strings.Cut(k, " ")
		if lines[head] == nil {
			heads = append(heads, head)
		}
		lines[head] = append(lines[head], fmt.Sprintf("%d %s", c.n[k], rest))
	}
	var b strings.Builder
	for _, h := range heads {
		fmt.Fprintf(&b, "  %s: %s\n", h, strings.Join(lines[h], ", "))
	}
	return b.String()
}
