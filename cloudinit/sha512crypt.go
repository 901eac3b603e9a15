package cloudinit

import (
	"crypto/sha512"
	"hash"
	"strings"
)

// cryptAlphabet is the order of characters in crypt's own base64.
const cryptAlphabet = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// cryptRounds is the number of rounds that a hash without "rounds=" stands for.
const cryptRounds = 5000

// sha512crypt hashes a password as crypt(3) does for "$6$": the algorithm of
// Ulrich Drepper's public specification "Unix crypt using SHA-256 and SHA-512".
// The salt is cut to 16 characters; rounds are at least 1000.
func sha512crypt(password, salt string, rounds int) string {
	salt = salt[:min(len(salt), 16)]
	pw, s := []byte(password), []byte(salt)
	sum := cryptFirst(pw, s)
	p := repeat(digestRepeated(pw, len(pw)), len(pw))
	q := repeat(digestRepeated(s, 16+int(sum[0])), len(s))
	for i := range max(rounds, 1000) {
		sum = cryptRound(i, sum, p, q)
	}
	return salt + "$" + cryptEncode(sum)
}

// passwordHash is the whole field of a password file, with the default rounds.
func passwordHash(password, salt string) string {
	return "$6$" + sha512crypt(password, salt, cryptRounds)
}

// cryptFirst computes the digest that the rounds start from.
func cryptFirst(pw, salt []byte) []byte {
	inner := sha512.New()
	writeAll(inner, pw, salt, pw)
	b := inner.Sum(nil)

	outer := sha512.New()
	writeAll(outer, pw, salt, repeat(b, len(pw)))
	for n := len(pw); n > 0; n >>= 1 {
		if n&1 != 0 {
			outer.Write(b)
		} else {
			outer.Write(pw)
		}
	}
	return outer.Sum(nil)
}

// cryptRound mixes password and salt sequences into the digest of the round
// before.
func cryptRound(i int, sum, p, q []byte) []byte {
	h := sha512.New()
	first, last := sum, p
	if i%2 != 0 {
		first, last = p, sum
	}
	h.Write(first)
	if i%3 != 0 {
		h.Write(q)
	}
	if i%7 != 0 {
		h.Write(p)
	}
	h.Write(last)
	return h.Sum(nil)
}

// digestRepeated hashes b, n times over.
func digestRepeated(b []byte, n int) []byte {
	h := sha512.New()
	for range n {
		h.Write(b)
	}
	return h.Sum(nil)
}

// repeat returns n bytes of b, over and over.
func repeat(b []byte, n int) []byte {
	out := make([]byte, 0, n+len(b))
	for len(out) < n {
		out = append(out, b...)
	}
	return out[:n]
}

// writeAll writes parts into h.
func writeAll(h hash.Hash, parts ...[]byte) {
	for _, p := range parts {
		h.Write(p)
	}
}

// cryptEncode writes the digest in crypt's base64 and its order of bytes:
// columns of the three thirds, each row turned by one against the row before.
func cryptEncode(sum []byte) string {
	var b strings.Builder
	at := [3]int{0, 21, 42}
	for range 21 {
		cryptEncode24(&b, uint32(sum[at[0]])<<16|uint32(sum[at[1]])<<8|uint32(sum[at[2]]), 4)
		at = [3]int{at[1] + 1, at[2] + 1, at[0] + 1}
	}
	cryptEncode24(&b, uint32(sum[63]), 2)
	return b.String()
}

// cryptEncode24 writes n characters for v, the lowest bits first.
func cryptEncode24(b *strings.Builder, v uint32, n int) {
	for range n {
		b.WriteByte(cryptAlphabet[v&0x3f])
		v >>= 6
	}
}
