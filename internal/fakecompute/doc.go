// Package fakecompute is a server that behaves like the Compute Engine API, as far
// as package gcp uses it: operations that run, fail and take their instance with
// them, names that are taken, zones that do not answer, pages, filters.
//
// Given Google's own discovery document, it refuses every request that the
// document does not allow: unknown paths, parameters and fields, fields that are
// the server's to write, values out of an enumeration or pattern.
//
//	server := fakecompute.New(fakecompute.Config{Zones: []string{"europe-west1-b"}, Discovery: d, Refused: func(s string) { t.Error(s) }})
//	http := httptest.NewServer(server)
//
// Faults come from Server.Before, which sees each call before it has an effect.
package fakecompute
