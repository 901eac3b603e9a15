-- A lease is the hash l:ID, with the endpoint as it was granted. One that was
-- granted to a waiter is claimed by its next call; if that does not come, it ends
-- as if it had not been. Of one that expired or was revoked, x:ID remembers the
-- token for ten minutes.
local function lease(id)
  local flat = call('HGETALL', base .. 'l:' .. id)
  if #flat == 0 then return nil end
  local l = pairs_of(flat)
  l.id = id
  for _, name in ipairs({ 'granted', 'deadline', 'ttl', 'prior' }) do l[name] = tonumber(l[name]) end
  return l
end

-- grant leases a free slot for the request: holder, domain, session, ttl.
function grant(s, id, r, claimed)
  local token, e = str(next_token()), call('HMGET', base .. 'e:' .. s.id, 'endpoint', 'egress')
  local deadline = now + (claimed and r.ttl or grace)
  call('HSET', base .. 'l:' .. id, 'token', token, 'of', s.id, 'inst', s.inst, 'gen', s.gen,
    'holder', r.holder, 'domain', r.domain, 'granted', str(now), 'deadline', str(deadline), 'ttl', str(r.ttl),
    'prior', str(s.used), 'claimed', claimed and '1' or '0', 'endpoint', e[1], 'egress', e[2])
  wake('l' .. id, deadline)
  s.used, s.n, s.leases = next_use(), s.n + 1, s.leases .. id .. ' '
  bind(r.session, s)
  count('acquired')
  settle(s)
  return { token, str(r.ttl), r.domain, e[1], e[2] }
end

-- claim makes a lease that was granted to a waiter the holder's, for the whole of
-- its time. It answers what is left of that.
local function claim(l)
  if l.claimed == '0' then
    l.granted, l.deadline = now, now + l.ttl
    call('HSET', base .. 'l:' .. l.id, 'claimed', '1', 'granted', str(l.granted), 'deadline', str(l.deadline))
    wake('l' .. l.id, l.deadline)
  end
  return { l.token, str(l.deadline - now), l.domain, l.endpoint, l.egress }
end

-- finish ends a lease. Where its holder did not say so, the endpoint stays unused
-- for the lock delay from then on. Where it was not used it keeps its turn.
local function finish(l, abandoned_at, unused)
  call('DEL', base .. 'l:' .. l.id)
  unwake('l' .. l.id)
  if abandoned_at then call('SET', base .. 'x:' .. l.id, l.token, 'PX', 600000) end
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

-- held returns the lease of the key, or nil and why: expired, wrong or unknown.
local function held(id, token)
  local l = lease(id)
  if l and l.token == token then return l end
  if l then return nil, 'wrong' end
  if call('GET', base .. 'x:' .. id) == token then return nil, 'expired' end
  return nil, 'unknown'
end
