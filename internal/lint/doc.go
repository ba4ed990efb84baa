// Package lint holds the rules of the house that a compiler does not check, as a Go test over
// the source of the whole repository: which package may import which, that clocks and
// randomness come in from outside, that every package says what it is for.
//
// It has no code of its own and is imported by nothing. What staticcheck and vet find is left
// to them.
package lint
