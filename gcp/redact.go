package gcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/api/googleapi"

	"github.com/egressfleet/egress/provider"
)

// redact renders a payload without user-data and consoles. What is no JSON, or
// repeats a piece of the user-data anywhere else, is shown as its length.
func redact(body []byte, secret provider.UserData) string {
	if len(body) == 0 {
		return ""
	}
	var v any
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil || decoder.More() {
		return length(len(body))
	}
	text, err := compact(redacted(v))
	if err != nil || shows(text, secret) {
		return length(len(body))
	}
	return text
}

func length(n int) string { return fmt.Sprintf("[%d bytes]", n) }

// redacted replaces what may hold secrets: the value of a metadata item that is
// user-data or that we do not know, and the contents of a console.
func redacted(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = redacted(v[i])
		}
	case map[string]any:
		key, _ := v["key"].(string)
		value, isItem := v["value"].(string)
		if isItem && key != "" && !harmless[key] {
			v["value"] = length(len(value))
		}
		if contents, ok := v["contents"].(string); ok {
			v["contents"] = length(len(contents))
		}
		for k := range v {
			v[k] = redacted(v[k])
		}
	}
	return v
}

// harmless are the metadata items without secrets. The rest is an
// administrator's or the user's.
var harmless = map[string]bool{itemEncoding: true, itemMetadata: true}

// minPiece is the length from which a line of user-data is not there by chance.
const minPiece = 8

// shows tells whether a text repeats a line of the user-data, or its base64.
func shows(text string, secret provider.UserData) bool {
	for line := range bytes.Lines(secret) {
		piece := strings.TrimSpace(string(line))
		if len(piece) >= minPiece && (strings.Contains(text, piece) || strings.Contains(text, quoted(piece))) {
			return true
		}
	}
	const sample = 24
	encoded := base64.StdEncoding.EncodeToString(secret)
	return len(encoded) >= sample && strings.Contains(text, encoded[:sample])
}

// The length of a stretch of user-data that is not there by chance, which is longer
// than an instance's name, and how far apart stretches are looked for.
const (
	minStretch  = 24
	stretchStep = 8
)

// repeats tells whether a text of the API has a line of the user-data, or a stretch
// of it: what the API quotes, it may cut off anywhere.
func repeats(text string, secret provider.UserData) bool {
	if shows(text, secret) {
		return true
	}
	plain := string(secret)
	for _, form := range []string{plain, quoted(plain), quoted(quoted(plain)), base64.StdEncoding.EncodeToString(secret)} {
		for at := 0; at+minStretch <= len(form); at += stretchStep {
			if strings.Contains(text, form[at:at+minStretch]) {
				return true
			}
		}
	}
	return false
}

// quoted is a text as JSON writes it.
func quoted(s string) string {
	out, err := compact(s)
	if err != nil {
		return s
	}
	return strings.Trim(out, `"`)
}

// withheld replaces an error that repeats user-data: the API quotes values that
// it does not take.
func withheld(err error, secret provider.UserData) error {
	if err == nil {
		return nil
	}
	var api *googleapi.Error
	isAPI := errors.As(err, &api)
	if !repeats(err.Error(), secret) && (!isAPI || !repeats(api.Body, secret) && !repeats(api.Message, secret)) {
		return err
	}
	const message = "the message is withheld, because it repeats user-data"
	if !isAPI {
		return errors.New(message)
	}
	return &googleapi.Error{Code: api.Code, Message: message, Header: api.Header, Errors: withoutMessages(api.Errors)}
}

func withoutMessages(items []googleapi.ErrorItem) []googleapi.ErrorItem {
	out := make([]googleapi.ErrorItem, 0, len(items))
	for _, item := range items {
		out = append(out, googleapi.ErrorItem{Reason: item.Reason})
	}
	return out
}
