// Package shinglev1 is the generated Go code of Shingle's API. The contract is in
// proto/shingle/v1, whose comments are the manual; `buf generate` makes this code from it,
// and a test here fails when the two differ.
package shinglev1
