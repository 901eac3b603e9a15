package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"

	"github.com/egressfleet/egress/internal/check"
)

// strict decodes JSON and reports every unknown field, and every value of the
// wrong kind, with its path.
func strict(data []byte, into any) error {
	unknown, err := kjson.UnmarshalStrict(data, into)
	if err == nil && len(unknown) == 0 {
		return nil
	}
	var problems check.Problems
	find(&problems, "", data, reflect.TypeOf(into).Elem())
	if found := problems.Err(); found != nil {
		return found
	}
	return errors.Join(append(unknown, err)...)
}

// find walks a value beside the type that it is for.
func find(problems *check.Problems, path string, data []byte, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	err := json.Unmarshal(data, reflect.New(t).Interface())
	_, itself := reflect.New(t).Interface().(json.Unmarshaler)
	_, text := reflect.New(t).Interface().(interface{ UnmarshalText([]byte) error })
	switch {
	case itself || text:
		if err != nil {
			problems.Within(path, reword(err, t))
		}
	case t.Kind() == reflect.Struct:
		findInObject(problems, path, data, t)
	case t.Kind() == reflect.Map:
		findInMap(problems, path, data, t)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		findInList(problems, path, data, t)
	case err != nil:
		problems.Within(path, reword(err, t))
	}
}

func findInObject(problems *check.Problems, path string, data []byte, t reflect.Type) {
	var object map[string]json.RawMessage
	if json.Unmarshal(data, &object) != nil {
		problems.Within(path, errors.New("must be an object with fields"))
		return
	}
	fields := fieldsOf(t)
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if field, ok := fields[key]; ok {
			find(problems, below(path, key), object[key], field)
			continue
		}
		problems.Missing(below(path, key), "unknown field")
	}
}

func findInMap(problems *check.Problems, path string, data []byte, t reflect.Type) {
	var object map[string]json.RawMessage
	if json.Unmarshal(data, &object) != nil {
		problems.Within(path, errors.New("must be an object"))
		return
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		find(problems, below(path, key), object[key], t.Elem())
	}
}

func findInList(problems *check.Problems, path string, data []byte, t reflect.Type) {
	var list []json.RawMessage
	if json.Unmarshal(data, &list) != nil {
		problems.Within(path, errors.New("must be a list"))
		return
	}
	for i, element := range list {
		find(problems, fmt.Sprintf("%s[%d]", path, i), element, t.Elem())
	}
}

func below(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// fieldsOf are the JSON fields of a struct by their names.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		fields[name] = f.Type
	}
	return fields
}

// kinds are the words for what is wanted.
var kinds = map[reflect.Kind]string{
	reflect.String: "a string", reflect.Bool: "true or false", reflect.Float64: "a number", reflect.Int: "a whole number",
	reflect.Int64: "a whole number", reflect.Uint: "a whole number, not negative", reflect.Uint64: "a whole number, not negative",
}

// reword says what is wanted in place of names of Go.
func reword(err error, t reflect.Type) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	kind, ok := kinds[t.Kind()]
	if !ok {
		kind = "of another kind"
	}
	return errors.New("must be " + kind)
}
