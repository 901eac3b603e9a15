package cloudinit

// field builds an entry of the system use area: signature, length, version 1.
func field(signature string, data ...byte) []byte {
	b := append([]byte(signature), byte(4+len(data)), 1)
	return append(b, data...)
}

// suspStart says that system use fields follow, and that none are skipped.
func suspStart() []byte {
	return field("SP", 0xbe, 0xef, 0)
}

// suspContinuation points to the sector that holds the fields too long for a
// directory record.
func suspContinuation(length int) []byte {
	data := make([]byte, 24)
	put32(data, continuation)
	put32(data[8:], 0)
	put32(data[16:], uint32(length))
	return field("CE", data...)
}

// rockRidgeReference declares the extension, in the words readers look for.
func rockRidgeReference() []byte {
	const (
		id          = "RRIP_1991A"
		description = "THE ROCK RIDGE INTERCHANGE PROTOCOL PROVIDES SUPPORT FOR POSIX FILE SYSTEM SEMANTICS"
		source      = "PLEASE CONTACT DISC PUBLISHER FOR SPECIFICATION SOURCE.  SEE PUBLISHER IDENTIFIER IN PRIMARY VOLUME DESCRIPTOR FOR CONTACT INFORMATION."
	)
	data := []byte{byte(len(id)), byte(len(description)), byte(len(source)), 1}
	return field("ER", append(data, id+description+source...)...)
}

// posixAttributes gives a file its mode and links; user and group are root.
func posixAttributes(mode, links uint32) []byte {
	data := make([]byte, 32)
	put32(data, mode)
	put32(data[8:], links)
	return field("PX", data...)
}

// alternateName gives a file its exact name.
func alternateName(name string) []byte {
	return field("NM", append([]byte{0}, name...)...)
}
