-- A face is what targets see: an egress address, behind which several endpoints
-- may stand (the set face:ADDRESS), or one endpoint whose address is not known.
-- Domains ban faces. The sorted set ban:DOMAIN has a face's ban until when, the
-- hash bans:DOMAIN its count and the store's token when it was counted; the set
-- banned:FACE has the domains. A ban stays after its end, so that the next one is
-- longer.
local function own(face) return string.sub(face, 1, 1) == '=' end

local function own_face(s) return '=' .. str(s.inst) .. '=' .. s.id end

local function banned(face, domain)
  if domain == '' then return false end
  local till = call('ZSCORE', base .. 'ban:' .. domain, face)
  return till and tonumber(till) > now or false
end

local function ban_of(face, domain)
  local text = call('HGET', base .. 'bans:' .. domain, face)
  if not text then return { till = 0, n = 0, token = 0 } end
  local n, token = string.match(text, '^(%d+) (%d+)$')
  return { till = tonumber(call('ZSCORE', base .. 'ban:' .. domain, face)), n = tonumber(n), token = tonumber(token) }
end

-- a ban is due under its face, whose length goes before it, and its domain.
local function ban_name(face, domain) return 'b' .. #face .. ':' .. face .. domain end

local function set_ban(face, domain, b)
  call('ZADD', base .. 'ban:' .. domain, b.till, face)
  call('HSET', base .. 'bans:' .. domain, face, str(b.n) .. ' ' .. str(b.token))
  call('SADD', base .. 'banned:' .. face, domain)
  if not call('HGET', HOT, 'd:' .. domain) then call('HSET', HOT, 'd:' .. domain, cmsgpack.pack(false)) end
  wake(ban_name(face, domain), b.till)
end

local function lift_ban(face, domain)
  call('ZREM', base .. 'ban:' .. domain, face)
  call('HDEL', base .. 'bans:' .. domain, face)
  call('SREM', base .. 'banned:' .. face, domain)
  unwake(ban_name(face, domain))
  if call('ZCARD', base .. 'ban:' .. domain) == 0 then
    call('DEL', base .. 'skip:' .. domain)
    call('HDEL', HOT, 'd:' .. domain)
  end
end

-- take_off parts a slot from its face. What is held against an address stays.
local function take_off(s)
  if s.face == '' then return end
  if own(s.face) then
    for _, domain in ipairs(call('SMEMBERS', base .. 'banned:' .. s.face)) do lift_ban(s.face, domain) end
  else
    call('SREM', base .. 'face:' .. s.face, s.id)
  end
end

local function put_on(s, face)
  s.face = face
  call('HSET', base .. 'faces', s.id, face)
end

-- wear gives the slot the face of its egress address, with what domains had
-- against its own, and returns how many stand behind it. Without an address it
-- keeps the one it has.
local function wear(s, address)
  if address == '' or address == s.face then return 0 end
  if own(s.face) then
    for _, domain in ipairs(call('SMEMBERS', base .. 'banned:' .. s.face)) do
      local mine, theirs = ban_of(s.face, domain), ban_of(address, domain)
      set_ban(address, domain, { till = math.max(mine.till, theirs.till), n = math.max(mine.n, theirs.n),
        token = math.max(mine.token, theirs.token) })
    end
  end
  take_off(s)
  put_on(s, address)
  if s.class then unmark() end -- a new one comes in last
  call('SADD', base .. 'face:' .. address, s.id)
  return call('SCARD', base .. 'face:' .. address)
end

-- behind returns the IDs of the endpoints with the face.
local function behind(face)
  if not own(face) then return call('SMEMBERS', base .. 'face:' .. face) end
  local id = string.match(face, '^=%d+=(.*)$')
  return { id }
end
