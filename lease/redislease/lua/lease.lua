-- A lease is l:ID, packed. One that was granted to a waiter is claimed by its next
-- call; if that does not come, it ends as if it had not been. Of one that expired or
-- was revoked, l:ID remembers the token for ten minutes, and of an acquire that was
-- given up, "gone" for one. Then lease returns nil and that.
local function lease(id)
  local text = call('GET', base .. 'l:' .. id)
  if not text then return nil end
  if string.sub(text, 1, 1) == 'x' then return nil, string.sub(text, 2) end
  local l, at = { id = id }, nil
  l.token, l.use, l.of, l.class, l.prior, l.granted, l.ttl, l.deadline, l.claimed, l.holder, l.domain, at =
    struct.unpack('>I4c0I4c0I4c0I4c0dddddI4c0I4c0', text)
  if at <= #text then l.former = cmsgpack.unpack(string.sub(text, at)) end
  return l
end

local function keep(l)
  local text = struct.pack('>I4c0I4c0I4c0I4c0dddddI4c0I4c0', #l.token, l.token, #l.use, l.use, #l.of, l.of, #l.class, l.class,
    l.prior, l.granted, l.ttl, l.deadline, l.claimed, #l.holder, l.holder, #l.domain, l.domain)
  call('SET', base .. 'l:' .. l.id, text .. (l.former and cmsgpack.pack(l.former) or ''))
  wake('l' .. l.id, l.deadline)
end

-- forget leaves a word in the place of a lease, for so many milliseconds.
local function forget(id, word, long) call('SET', base .. 'l:' .. id, 'x' .. word, 'PX', long) end

-- current tells whether a lease is on what stands behind the ID now.
local function current(l, s) return string.find(' ' .. s.leases, ' ' .. l.id .. ' ', 1, true) end

-- granted is what the holder is told: token, egress address and endpoint, what is left
-- of the time, domain. The slot may be given where it is known.
local function granted(l, s)
  local of = l.former or s or load(l.of)
  return { l.token, of.egress .. '\n' .. of.endpoint, str(l.deadline - now), l.domain }
end

-- grant leases a free slot for the request: holder, domain, session, ttl.
local function grant(s, id, r, claimed)
  local l = { id = id, token = str(next_token()), use = str(next_use()), of = s.id, class = s.class, prior = s.used,
    holder = r.holder, domain = r.domain, granted = now, ttl = r.ttl, deadline = now + (claimed and r.ttl or grace), claimed = claimed and 1 or 0 }
  keep(l)
  s.used, s.n, s.leases = meta.used, s.n + 1, s.leases .. id .. ' '
  meta.acquired = meta.acquired + 1
  if r.session ~= '' then rare().bind(r.session, s) end
  settle(s)
  return granted(l, s)
end

-- claim makes a lease that was granted to a waiter the holder's, for the whole of
-- its time.
local function claim(l)
  if l.claimed == 0 then
    l.claimed, l.granted, l.deadline = 1, now, now + l.ttl
    keep(l)
  end
  return granted(l)
end

-- finish ends a lease. Where its holder did not say so, the endpoint stays unused
-- for the lock delay from then on. Where it was not used it keeps its turn.
local function finish(l, abandoned_at, unused)
  if abandoned_at then forget(l.id, l.token, '600000') else call('DEL', base .. 'l:' .. l.id) end
  unwake('l' .. l.id)
  local s = load(l.of)
  if not s then return end
  if not current(l, s) then
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
  local l, over = lease(id)
  if l and l.token == token then return l end
  if l then return nil, 'wrong' end
  if over == token then return nil, 'expired' end
  return nil, 'unknown'
end
