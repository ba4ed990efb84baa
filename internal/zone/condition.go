package zone

import "fmt"

// String returns "ZNS" or "SMR".
func (d Dialect) String() string {
	switch d {
	case ZNS:
		return "ZNS"
	case SMR:
		return "SMR"
	}
	return fmt.Sprintf("dialect(%d)", uint8(d))
}

var conditionNames = [...]string{
	"not-wp", "empty", "implicit-open", "explicit-open", "closed", "full", "read-only", "offline",
}

// String returns the condition in lower-case words, as reports and test files spell it.
func (c Condition) String() string {
	if int(c) < len(conditionNames) {
		return conditionNames[c]
	}
	return fmt.Sprintf("condition(%d)", uint8(c))
}

// IsOpen reports whether a zone in this condition holds an open slot.
func (c Condition) IsOpen() bool { return c == ImplicitOpen || c == ExplicitOpen }

// IsActive reports whether a zone in this condition holds an active slot.
func (c Condition) IsActive() bool { return c.IsOpen() || c == Closed }
