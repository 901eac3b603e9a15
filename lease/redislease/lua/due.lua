-- What happens when it is due, by the first letter of its name.
local ring = {}

-- a lease whose time has run out, or that its waiter did not claim.
function ring.l(id, at)
  local l = lease(id)
  if not l then return end
  if l.claimed == 0 then
    count('canceled')
    return finish(l, nil, true)
  end
  count('expired')
  finish(l, at)
end

-- a slot that has cooled down.
function ring.s(id)
  local s = load(id)
  if s then
    s.due = 0
    settle(s)
  end
end

-- a ban that has ended, or is old enough to be forgotten.
function ring.b(name)
  local length, rest = string.match(name, '^(%d+):(.*)$')
  local face, domain = string.sub(rest, 1, length), string.sub(rest, length + 1)
  local till = tonumber(call('ZSCORE', base .. 'ban:' .. domain, face) or 0)
  if till + forget_after <= now then return lift_ban(face, domain) end
  wake('b' .. name, till > now and till or till + forget_after)
  if till > now then return end
  for _, id in ipairs(behind(face)) do
    local s = load(id)
    if s and s.state == 'free' then offer(s) end
  end
end

-- a waiter that has been silent for too long.
function ring.w(id)
  local lane = call('HGET', base .. 'w:' .. id, 'lane')
  if lane then
    count('canceled')
    leave_lane(id, lane)
  end
end

-- a session that was not used for long.
function ring.n(name) call('HDEL', SESSIONS, name) end

-- revoke ends the leases of those IDs at once.
local function revoke(ids)
  for id in string.gmatch(ids, '%S+') do
    local l = lease(id)
    if l then
      count('revoked')
      finish(l, now)
    end
  end
end

-- quarantine keeps every endpoint unused until then: leases may be out that the
-- store knows nothing of.
local function quarantine(till)
  if till <= math.max(now, meta.quarantine) then return end
  meta.quarantine = till
  for _, id in ipairs(call('ZRANGE', IDS, 0, -1)) do
    local s = load(id)
    s.cool = math.max(s.cool, till)
    settle(s)
  end
end
