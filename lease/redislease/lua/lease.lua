-- A lease is l:ID, packed. One that was granted to a waiter is claimed by its next
-- call; if that does not come, it ends as if it had not been. Of one that expired or
-- was revoked, x:ID remembers the token for ten minutes.
local function lease(id)
  local text = call('GET', base .. 'l:' .. id)
  if not text then return nil end
  local l = cmsgpack.unpack(text)
  l.id = id
  return l
end

local function keep(l)
  call('SET', base .. 'l:' .. l.id, cmsgpack.pack(l))
  wake('l' .. l.id, l.deadline)
end

-- granted is what the holder is told: token, what is left of the time, domain,
-- endpoint and egress address.
local function granted(l, endpoint, egress)
  if l.endpoint then endpoint, egress = l.endpoint, l.egress end
  if not endpoint then
    local e = call('HMGET', base .. 'e:' .. l.of, 'endpoint', 'egress')
    endpoint, egress = e[1], e[2]
  end
  return { str(l.token), str(l.deadline - now), l.domain, endpoint, egress }
end

-- grant leases a free slot for the request: holder, domain, session, ttl. The
-- endpoint may be given where it is known.
local function grant(s, id, r, claimed, endpoint, egress)
  local l = { id = id, token = next_token(), of = s.id, inst = s.inst, holder = r.holder, domain = r.domain,
    granted = now, ttl = r.ttl, deadline = now + (claimed and r.ttl or grace), prior = s.used, claimed = claimed }
  keep(l)
  s.used, s.n, s.leases = next_use(), s.n + 1, s.leases .. id .. ' '
  meta.acquired = meta.acquired + 1
  if r.session ~= '' then rare().bind(r.session, s) end
  settle(s)
  return granted(l, endpoint, egress)
end

-- claim makes a lease that was granted to a waiter the holder's, for the whole of
-- its time.
local function claim(l)
  if not l.claimed then
    l.claimed, l.granted, l.deadline = true, now, now + l.ttl
    keep(l)
  end
  return granted(l)
end

-- finish ends a lease. Where its holder did not say so, the endpoint stays unused
-- for the lock delay from then on. Where it was not used it keeps its turn.
local function finish(l, abandoned_at, unused)
  call('DEL', base .. 'l:' .. l.id)
  unwake('l' .. l.id)
  if abandoned_at then call('SET', base .. 'x:' .. l.id, str(l.token), 'PX', 600000) end
  local s = load(l.of)
  if not s then return end
  if s.inst ~= l.inst then
    s.former = without(s.former, l.id)
    return save(s)
  end
  s.n, s.leases = s.n - 1, without(s.leases, l.id)
  if abandoned_at then s.cool = math.max(s.cool, abandoned_at + lock_delay) end
  if unused and s.n == 0 then s.used = l.prior end
  settle(s)
end

-- held returns the lease of the key, or nil and why: expired, wrong or unknown.
local function held(id, token)
  local l = lease(id)
  if l and str(l.token) == token then return l end
  if l then return nil, 'wrong' end
  if call('GET', base .. 'x:' .. id) == token then return nil, 'expired' end
  return nil, 'unknown'
end
