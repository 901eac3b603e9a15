package fakecompute

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
)

// instance is one virtual machine.
type instance struct {
	id      uint64
	zone    string
	body    map[string]any // as it was sent
	created time.Time
	// fixed is a state that does not change by itself.
	fixed   string
	stopped time.Time
	// doomed goes when its insert is over.
	doomed bool
	// deleting is the operation that removes it.
	deleting *operation
	// address is the external one, once it has been given.
	address string
}

// operation is one that runs, or has run.
type operation struct {
	id       uint64
	kind     string
	at       key
	target   uint64
	inserted time.Time
	// begins and ends are when it stops being PENDING, and RUNNING.
	begins, ends time.Time
	errors       []OperationError
}

// host is how the API writes links, whatever host is called.
const host = "https://www.googleapis.com/compute/v1/"

// advance brings everything to the present.
func (s *Server) advance(now time.Time) {
	for k, in := range s.instances {
		if in.deleting != nil && !now.Before(in.deleting.ends) || in.doomed && now.Sub(in.created) >= s.cfg.OperationDelay {
			delete(s.instances, k)
		}
	}
}

func (s *Server) nextID() uint64 {
	s.last++
	return s.last
}

func (s *Server) newInstance(zone string, body map[string]any) *instance {
	name, _ := body["name"].(string)
	in := &instance{id: s.nextID(), zone: zone, body: body, created: time.Now()}
	s.instances[key{zone, name}] = in
	return in
}

func (s *Server) insert(_ *http.Request, c Call) (any, *Error) {
	var body map[string]any
	if err := json.Unmarshal(c.Body, &body); err != nil {
		return nil, invalid("Parse Error: %v", err)
	}
	if failed := s.checkInsert(c, body); failed != nil {
		return nil, failed
	}
	if _, taken := s.instances[key{c.Zone, c.Name}]; taken {
		return nil, &Error{Status: http.StatusConflict, Reason: "alreadyExists", Message: fmt.Sprintf("The resource 'projects/%s/zones/%s/instances/%s' already exists", c.Project, c.Zone, c.Name)}
	}
	in := s.newInstance(c.Zone, body)
	op := &operation{kind: "insert", at: key{c.Zone, c.Name}, target: in.id, begins: in.created, ends: in.created.Add(s.cfg.OperationDelay)}
	return s.begin(op), nil
}

func (s *Server) begin(op *operation) any {
	op.id, op.inserted = s.nextID(), time.Now()
	s.operations = append(s.operations, op)
	answer := s.operationJSON(op, op.inserted)
	answer["status"] = "RUNNING" // never more than that at first
	delete(answer, "error")
	return answer
}

var labelPattern = regexp.MustCompile(`^[\p{Ll}\p{Lo}\p{N}_-]{0,63}$`)

// checkInsert refuses what the API does, beyond its schema.
func (s *Server) checkInsert(c Call, body map[string]any) *Error {
	if description, _ := body["description"].(string); len(utf16.Encode([]rune(description))) > 2048 {
		return invalid("Invalid value for field 'resource.description': '%.20s'. Must be no longer than 2048 characters.", description)
	}
	labels, _ := body["labels"].(map[string]any)
	if len(labels) > 64 {
		return invalid("Invalid value for field 'resource.labels': too many labels.")
	}
	for name, value := range labels {
		if text, _ := value.(string); !labelPattern.MatchString(text) || !labelPattern.MatchString(name) {
			return invalid("Invalid value for field 'resource.labels': '%s'. Label value violates format constraints.", text)
		}
	}
	if failed := checkMetadata(body); failed != nil {
		return failed
	}
	return s.checkParts(c, body)
}

func checkMetadata(body map[string]any) *Error {
	metadata, _ := body["metadata"].(map[string]any)
	items, _ := metadata["items"].([]any)
	total := 0
	for i, item := range items {
		fields, _ := item.(map[string]any)
		name, _ := fields["key"].(string)
		value, _ := fields["value"].(string)
		total += len(name) + len(value)
		if len(value) > 262144 {
			return &Error{Status: http.StatusRequestEntityTooLarge, Reason: "fieldSizeTooLarge", Message: fmt.Sprintf("Value for field 'metadata.items[%d].value' is too large: maximum size 262144 character(s); actual size %d.", i, len(value))}
		}
	}
	if total >= 512<<10 {
		return &Error{Status: http.StatusRequestEntityTooLarge, Reason: "fieldSizeTooLarge", Message: "Value for field 'metadata.items' is too large."}
	}
	return nil
}

// checkParts looks for machine type, image and network.
func (s *Server) checkParts(c Call, body map[string]any) *Error {
	machine, _ := body["machineType"].(string)
	if machine == "" {
		return invalid("Invalid value for field 'resource.machineType': ''. The URL is malformed.")
	}
	if len(s.cfg.MachineTypes) > 0 && !slices.Contains(s.cfg.MachineTypes, machine[strings.LastIndexByte(machine, '/')+1:]) {
		return invalid("Invalid value for field 'resource.machineType': '%s'. Machine type with name '%s' does not exist in zone '%s'.", machine, machine[strings.LastIndexByte(machine, '/')+1:], c.Zone)
	}
	disks, _ := body["disks"].([]any)
	for _, d := range disks {
		params, _ := d.(map[string]any)["initializeParams"].(map[string]any)
		image, _ := params["sourceImage"].(string)
		if len(s.cfg.Images) > 0 && !slices.Contains(s.cfg.Images, image) {
			return notFound(image)
		}
	}
	nics, _ := body["networkInterfaces"].([]any)
	for _, nic := range nics {
		network, _ := nic.(map[string]any)["network"].(string)
		if name := network[strings.LastIndexByte(network, '/')+1:]; network != "" && !slices.Contains(s.cfg.Networks, name) {
			return invalid("Invalid value for field 'resource.networkInterfaces[0].network': '%s'. The referenced network resource cannot be found.", network)
		}
	}
	return nil
}

func (s *Server) get(_ *http.Request, c Call) (any, *Error) {
	in, failed := s.find(c)
	if failed != nil {
		return nil, failed
	}
	if time.Since(in.created) < s.cfg.Unseen {
		return nil, absent(c)
	}
	return s.instanceJSON(in, time.Now()), nil
}

func (s *Server) find(c Call) (*instance, *Error) {
	in, ok := s.instances[key{c.Zone, c.Name}]
	if !ok {
		return nil, absent(c)
	}
	return in, nil
}

func absent(c Call) *Error {
	return notFound(fmt.Sprintf("projects/%s/zones/%s/instances/%s", c.Project, c.Zone, c.Name))
}

func (s *Server) delete(_ *http.Request, c Call) (any, *Error) {
	in, failed := s.find(c)
	if failed != nil {
		return nil, failed
	}
	if in.body["deletionProtection"] == true {
		return nil, &Error{Status: http.StatusBadRequest, Reason: "invalidResourceUsage", Message: fmt.Sprintf("Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion. Resource: %s.'", c.Name)}
	}
	if in.deleting != nil {
		return s.operationJSON(in.deleting, time.Now()), nil
	}
	begins := time.Now().Add(s.cfg.DeletePending)
	in.deleting = &operation{kind: "delete", at: key{c.Zone, c.Name}, target: in.id, begins: begins, ends: begins.Add(s.cfg.DeleteDelay)}
	return s.begin(in.deleting), nil
}

func (s *Server) serialPort(r *http.Request, c Call) (any, *Error) {
	in, failed := s.find(c)
	if failed != nil {
		return nil, failed
	}
	if status := s.status(in, time.Now()); status == "PROVISIONING" {
		return nil, &Error{Status: http.StatusBadRequest, Reason: "resourceNotReady", Message: fmt.Sprintf("The resource 'projects/%s/zones/%s/instances/%s' is not ready", c.Project, c.Zone, c.Name)}
	}
	text := s.serial[key{c.Zone, c.Name}]
	start, _ := strconv.Atoi(r.URL.Query().Get("start"))
	if start < 0 {
		start = max(len(text)+start, 0)
	}
	start = min(start, len(text))
	return map[string]any{"contents": text[start:], "start": strconv.Itoa(start), "next": strconv.Itoa(len(text))}, nil
}

// status is where an instance stands.
func (s *Server) status(in *instance, now time.Time) string {
	age := now.Sub(in.created)
	switch {
	case in.deleting != nil && !now.Before(in.deleting.begins):
		return "STOPPING"
	case in.fixed != "":
		return in.fixed
	case age < s.cfg.BootDelay/2:
		return "PROVISIONING"
	case age < s.cfg.BootDelay:
		return "STAGING"
	}
	return "RUNNING"
}

func (s *Server) instanceJSON(in *instance, now time.Time) map[string]any {
	out := maps.Clone(in.body)
	self := fmt.Sprintf("%sprojects/%s/zones/%s", host, s.cfg.Project, in.zone)
	out["kind"] = "compute#instance"
	out["id"] = strconv.FormatUint(in.id, 10)
	out["creationTimestamp"] = in.created.Format("2006-01-02T15:04:05.000-07:00")
	out["status"] = s.status(in, now)
	out["zone"] = self
	out["selfLink"] = fmt.Sprintf("%s/instances/%s", self, in.body["name"])
	if !in.stopped.IsZero() {
		out["lastStopTimestamp"] = in.stopped.Format("2006-01-02T15:04:05.000-07:00")
	}
	out["networkInterfaces"] = s.interfaces(in, now)
	return out
}

// interfaces have an internal address at once, and an external one only while the
// instance runs.
func (s *Server) interfaces(in *instance, now time.Time) []any {
	sent, _ := in.body["networkInterfaces"].([]any)
	runs := s.status(in, now) == "RUNNING" && now.Sub(in.created) >= s.cfg.BootDelay+s.cfg.AddressDelay
	all := []any{}
	for _, nic := range sent {
		out := maps.Clone(nic.(map[string]any))
		out["name"] = "nic0"
		out["networkIP"] = fmt.Sprintf("10.132.%d.%d", in.id>>8&0xff, in.id&0xff)
		for field, address := range map[string][2]string{
			"accessConfigs":     {"natIP", s.address(in, runs)},
			"ipv6AccessConfigs": {"externalIpv6", fmt.Sprintf("2001:db8::%x", in.id&0xffff)},
		} {
			var accesses []any
			configs, _ := out[field].([]any)
			for _, c := range configs {
				access := maps.Clone(c.(map[string]any))
				if runs {
					access[address[0]] = address[1]
				}
				accesses = append(accesses, access)
			}
			if accesses != nil {
				out[field] = accesses
			}
		}
		all = append(all, out)
	}
	return all
}

// address is the external one of an instance; empty before it runs.
func (s *Server) address(in *instance, runs bool) string {
	switch {
	case !runs || in.address != "":
	case s.cfg.Boot != nil:
		in.address = s.cfg.Boot(in.body)
	default:
		in.address = fmt.Sprintf("203.0.113.%d", in.id&0xff)
	}
	return in.address
}

func (s *Server) aggregatedList(r *http.Request, _ Call) (any, *Error) {
	query := r.URL.Query()
	matches, err := parseFilter(query.Get("filter"))
	if err != nil {
		return nil, invalid("%v", err)
	}
	found := s.matching(matches)
	// What comes and goes between two pages moves no other instance.
	after, _ := strconv.ParseUint(query.Get("pageToken"), 10, 64)
	found = slices.DeleteFunc(found, func(in *instance) bool { return in.id <= after })
	_, to, token := s.window("", query.Get("maxResults"), len(found))
	if token != "" {
		token = strconv.FormatUint(found[to-1].id, 10)
	}
	items := map[string]any{}
	for _, zone := range s.cfg.Zones {
		items["zones/"+zone] = map[string]any{"warning": map[string]any{"code": "NO_RESULTS_ON_PAGE", "message": "There are no results for scope 'zones/" + zone + "' on this page."}}
	}
	for _, in := range found[:to] {
		scope := "zones/" + in.zone
		list, _ := items[scope].(map[string]any)["instances"].([]any)
		items[scope] = map[string]any{"instances": append(list, s.instanceJSON(in, time.Now()))}
	}
	out := map[string]any{"kind": "compute#instanceAggregatedList", "items": items}
	if token != "" {
		out["nextPageToken"] = token
	}
	s.addUnreachable(out, items)
	return out, nil
}

func (s *Server) addUnreachable(out, items map[string]any) {
	for zone, unreachable := range s.unreachable {
		if !unreachable {
			continue
		}
		delete(items, "zones/"+zone)
		if s.pageWide {
			list, _ := out["unreachables"].([]any)
			out["unreachables"] = append(list, "projects/"+s.cfg.Project+"/zones/"+zone)
			continue
		}
		items["zones/"+zone] = map[string]any{"warning": map[string]any{"code": "UNREACHABLE", "message": "The zone did not answer."}}
	}
}

// matching are the instances in the order of their making.
func (s *Server) matching(matches filter) (found []*instance) {
	for _, in := range s.instances {
		if !s.unreachable[in.zone] && (s.cfg.IgnoreFilters || matches(in.body)) {
			found = append(found, in)
		}
	}
	slices.SortFunc(found, func(a, b *instance) int { return int(a.id) - int(b.id) })
	return found
}

// window is the part of a list that a page has.
func (s *Server) window(token, most string, total int) (from, to int, next string) {
	from, _ = strconv.Atoi(token)
	size := s.cfg.PageSize
	if n, err := strconv.Atoi(most); err == nil && n > 0 {
		size = min(size, n)
	}
	from = min(from, total)
	to = min(from+size, total)
	if to < total {
		next = strconv.Itoa(to)
	}
	return from, to, next
}

func (s *Server) listOperations(r *http.Request, c Call) (any, *Error) {
	query := r.URL.Query()
	if query.Has("filter") && query.Has("orderBy") {
		return nil, invalid("Invalid value for field 'orderBy': it cannot be used with a filter.")
	}
	matches, err := parseFilter(query.Get("filter"))
	if err != nil {
		return nil, invalid("%v", err)
	}
	found := []any{}
	for _, op := range s.operations {
		if body := s.operationJSON(op, time.Now()); op.at.zone == c.Zone && (s.cfg.IgnoreFilters || matches(body)) {
			found = append(found, body)
		}
	}
	from, to, token := s.window(query.Get("pageToken"), query.Get("maxResults"), len(found))
	out := map[string]any{"kind": "compute#operationList", "items": found[from:to]}
	if token != "" {
		out["nextPageToken"] = token
	}
	return out, nil
}

func (s *Server) operationJSON(op *operation, now time.Time) map[string]any {
	zone := fmt.Sprintf("%sprojects/%s/zones/%s", host, s.cfg.Project, op.at.zone)
	out := map[string]any{
		"kind": "compute#operation", "id": strconv.FormatUint(op.id, 10), "name": fmt.Sprintf("operation-%d", op.id), "operationType": op.kind,
		"targetLink": zone + "/instances/" + op.at.name, "targetId": strconv.FormatUint(op.target, 10),
		"zone": zone, "insertTime": op.inserted.Format("2006-01-02T15:04:05.000-07:00"),
	}
	switch {
	case now.Before(op.begins):
		out["status"], out["progress"] = "PENDING", 0
	case now.Before(op.ends):
		out["status"], out["progress"] = "RUNNING", 30
	default:
		out["status"], out["progress"] = "DONE", 100
		if len(op.errors) > 0 {
			out["error"] = map[string]any{"errors": op.errors}
			out["httpErrorStatusCode"], out["httpErrorMessage"] = 503, "SERVICE UNAVAILABLE"
		}
	}
	return out
}
