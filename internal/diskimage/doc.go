// Package diskimage reads disk images from where they are published: over HTTP
// or from a file, across interruptions, unpacked on the way, checked against
// digests, and refused if they are no image or could name a file of the host
// that they end up on.
//
// Nothing is kept: an [Image] is a stream. Its errors are of package provider's
// classes, with the codes here, and never quote a URL's credentials or query.
package diskimage
