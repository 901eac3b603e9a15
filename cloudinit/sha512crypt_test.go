package cloudinit_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/egressfleet/egress/cloudinit"
)

// The test vectors of Drepper's specification, the rounds taken out of the
// hash as this package does not write them.
var cryptVectors = []struct {
	password, salt string
	rounds         int
	want           string
}{
	{"Hello world!", "saltstring", 5000, "saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1"},
	{"Hello world!", "saltstringsaltstring", 10000, "saltstringsaltst$OW1/O6BYHV6BcXZu8QVeXbDWra3Oeqh0sbHbbMCVNSnCM/UrjmM0Dp8vOuZeHBy/YTBmSK6H9qs/y3RnOaw5v."},
	{"This is just a test", "toolongsaltstring", 5000, "toolongsaltstrin$lQ8jolhgVRVhY4b5pZKaysCLi0QBxGoNeKQzQ3glMhwllF7oGDZxUhx1yxdYcz/e1JSbq3y6JMxxl8audkUEm0"},
	{"a very much longer text to encrypt.  This one even stretches over morethan one line.", "anotherlongsaltstring", 1400, "anotherlongsalts$POfYwTEok97VWcjxIiSOjiykti.o/pQs.wPvMxQ6Fm7I6IoYN3CmLs66x9t0oSwbtEW7o7UmJEiDwGqd8p4ur1"},
	{"we have a short salt string but not a short password", "short", 77777, "short$WuQyW2YR.hBNpjjRhpYD/ifIw05xdfeEyQoMxIXbkvr0gge1a1x3yRULJ5CCaUeOxFmtlcGZelFl5CxtgfiAc0"},
	{"a short string", "asaltof16chars..", 123456, "asaltof16chars..$BtCwjqMJGx5hrJhZywWvt0RLE8uZ4oPwcelCjmw2kSYu.Ec6ycULevoBK25fs2xXgMNrCzIMVcgEJAstJeonj1"},
	{"the minimum number is still observed", "roundstoolow", 10, "roundstoolow$kUMsbe306n21p9R.FRkW3IGn.S9NPN0x50YhH1xhLsPuWGsUSklZt58jaTfF4ZEQpyUNGc0dqbpBYYBaHHrsX."},
}

func TestSha512cryptVectors(t *testing.T) {
	for _, v := range cryptVectors {
		assert.Equal(t, v.want, cloudinit.Sha512crypt(v.password, v.salt, v.rounds), v.password)
	}
}

func TestSha512cryptAsOpenSSL(t *testing.T) {
	openssl := tool(t, "openssl", "openssl")
	for _, password := range []string{"x", "pässwörd 😀", strings.Repeat("long ", 50), `q"'$\`} {
		want := strings.TrimSpace(run(t, openssl, "passwd", "-6", "-salt", "saltsalt", password))
		assert.Equal(t, want, "$6$"+cloudinit.Sha512crypt(password, "saltsalt", 5000), password)
	}
}
