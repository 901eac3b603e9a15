-- Who waits stands in a lane with all others that ask for the same: selector,
-- domain and session, as JSON. The sorted set lane:LANE has them by arrival, lanes
-- has the lanes by that of their first, the hash w:ID what else there is to know.
-- No free endpoint satisfies anybody who waits: it is offered when it becomes
-- free. So whoever finds one free overtakes nobody.
local LANES = base .. 'lanes'

local function leave_lane(id, lane)
  local own_lane = base .. 'lane:' .. lane
  call('ZREM', own_lane, id)
  local first = call('ZRANGE', own_lane, 0, 0, 'WITHSCORES')
  if first[1] then call('ZADD', LANES, first[2], lane) else call('ZREM', LANES, lane) end
  meta.waiting = meta.waiting - 1
  call('DEL', base .. 'w:' .. id)
  unwake('w' .. id)
end

-- enter_lane puts a request at its place by arrival.
local function enter_lane(id, lane, holder, ttl, arrived)
  local own_lane = base .. 'lane:' .. lane
  call('ZADD', own_lane, arrived, id)
  call('ZADD', LANES, call('ZRANGE', own_lane, 0, 0, 'WITHSCORES')[2], lane)
  call('HSET', base .. 'w:' .. id, 'lane', lane, 'holder', holder, 'ttl', ttl, 'arrived', str(arrived), 'caller', caller)
  wake('w' .. id, now + grace)
  meta.waiting = meta.waiting + 1
end

local SESSIONS = base .. 'sessions'

-- bound returns the slot that a session is to stay with: the one it had, as long
-- as that may be leased for the request.
local function bound(r)
  if r.session == '' then return nil end
  local had = call('HGET', SESSIONS, r.session)
  if not had then return nil end
  local inst, id = string.match(had, '^(%d+) (.*)$')
  local s = load(id)
  if not s or s.inst ~= tonumber(inst) or not usable(s) then return nil end
  if banned(s.face, r.domain) or not holds(r.selector, cjson.decode(attributes_of(s))) then return nil end
  return s
end

local function bind(session, s)
  if session == '' then return end
  call('HSET', SESSIONS, session, str(s.inst) .. ' ' .. s.id)
  wake('n' .. session, now + session_ttl)
end

local function request_of(lane)
  local l = cjson.decode(lane)
  return { selector = cjson.decode(l[1]), domain = l[2], session = l[3] }
end

local function satisfies(s, r, attributes)
  if banned(s.face, r.domain) or not holds(r.selector, attributes) then return false end
  local home = bound(r)
  return home == nil or home.id == s.id
end

-- serve grants the slot to the first of the lane, who must ask for it before the
-- grace is over, and tells its process.
local function serve(s, lane, r)
  local id = call('ZRANGE', base .. 'lane:' .. lane, 0, 0)[1]
  local w = pairs_of(call('HGETALL', base .. 'w:' .. id))
  leave_lane(id, lane)
  count('waited', str(math.max(now - tonumber(w.arrived), 0)))
  r.holder, r.ttl = w.holder, tonumber(w.ttl)
  call('PUBLISH', base .. 'wake:' .. w.caller, id)
  grant(s, id, r, false)
end

-- offer gives a free slot to the first who waits and whom it satisfies. Granting
-- settles it, and so offers it to the next if it is still free.
local function offer(s)
  local from, attributes = 0, cjson.decode(attributes_of(s))
  repeat
    local lanes = call('ZRANGE', LANES, from, from + 63)
    for _, lane in ipairs(lanes) do
      local r = request_of(lane)
      if satisfies(s, r, attributes) then return serve(s, lane, r) end
    end
    from = from + 64
  until #lanes < 64
end
