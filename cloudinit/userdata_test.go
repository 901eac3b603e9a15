package cloudinit_test

import (
	"bytes"
	"compress/gzip"
)

// userDataKinds are documents of every form that cloud-init takes, and some
// that tempt a program to be clever about them.
var userDataKinds = map[string][]byte{
	"cloud-config":        []byte("#cloud-config\nversion: 1.10 # stays a string\nz: 1\na: 2\n"),
	"jinja":               []byte("## template: jinja\n#cloud-config\nfqdn: {{ ds.meta_data.uid }}\n"),
	"script":              []byte("#!/bin/sh\necho hello\n"),
	"no final line end":   []byte("#!/bin/sh\necho hello"),
	"leading blank lines": []byte("\n\n\n#cloud-config\n"),
	"trailing spaces":     []byte("#cloud-config\na: b   \n\n\n"),
	"CRLF":                []byte("#!/bin/sh\r\necho hello\r\n"),
	"ends in CR":          []byte("#!/bin/sh\r"),
	"UTF-8":               []byte("#cloud-config\nfinal_message: grüß 😀\n"),
	"binary":              {0, 1, 2, 0xff, 0xfe, '\n', 0},
	"looks like MIME":     []byte("--part\nContent-Type: text/plain\n\nFrom here\n.\n--part--\n"),
	"empty":               {},
	"gzip":                gzipped("#cloud-config\nruncmd: [reboot]\n"),
	"long line":           []byte("#!/bin/sh\n: " + string(bytes.Repeat([]byte("x"), 5000)) + "\n"),
}

// gzipped compresses s.
func gzipped(s string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(s))
	_ = w.Close()
	return b.Bytes()
}
