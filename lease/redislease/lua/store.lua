-- What every script begins with: the fleet's keys, the caller's settings, and the
-- counters that the store has only one of. All keys begin with KEYS[1], whose hash
-- tag keeps them in one slot of a cluster.
--
-- ARGV begins with the same ten for every script; the script's own follow.
local call = redis.call -- as in quick.lua, for scripts without it
local base = KEYS[1]
local known = ARGV[1]                       -- the incarnation that the caller knows, or ''
local seen = tonumber(ARGV[2])              -- the highest token that it has seen
local caller = ARGV[3]                      -- a name for it, unlike any other's
local max_holders = tonumber(ARGV[4])
local lock_delay = tonumber(ARGV[5])
local longest_ttl = tonumber(ARGV[6])
local fresh = ARGV[7] == '1'                -- an empty store is a new one
local grace = tonumber(ARGV[8])             -- how long a waiter may be silent
local session_ttl = tonumber(ARGV[9])
local forget_after = tonumber(ARGV[10])     -- how long an ended ban is remembered
local function arg(n) return ARGV[10 + n] end

local META, DUE = base .. 'meta', base .. 'due'

-- str writes a whole number in full: Lua's own way keeps 14 digits.
local function str(n) return string.format('%.0f', n) end

-- pairs_of makes a table of a flat reply: name, value, name, value.
local function pairs_of(flat)
  local t = {}
  for i = 1, #flat, 2 do t[flat[i]] = flat[i + 1] end
  return t
end

-- meta is what there is one of: the incarnation, the last token and use, until when
-- nothing is leased, the epoch of the marks and the highest (see pick.lua), how many
-- wait, how many were acquired.
local v = call('HMGET', META, 'born', 'token', 'used', 'quarantine', 'epoch', 'mark', 'waiting', 'n:acquired')
local meta = { born = v[1], token = tonumber(v[2] or 0), used = tonumber(v[3] or 0), quarantine = tonumber(v[4] or 0),
  epoch = v[5] or '0', mark = tonumber(v[6] or 0), waiting = tonumber(v[7] or 0), acquired = tonumber(v[8] or 0) }

-- next_use numbers the uses of endpoints, so that the least recent goes first.
local function next_use()
  meta.changed, meta.used = true, meta.used + 1
  return meta.used
end

-- next_token is higher than all before, than all that the caller has seen, and at
-- least the time.
local function next_token()
  meta.changed, meta.token = true, math.max(meta.token + 1, seen + 1, now)
  return meta.token
end

local function count(what, by) call('HINCRBY', META, 'n:' .. what, by or 1) end

-- wake has a member of DUE looked at when that time has come. Its first letter
-- says what it is: a lease, a slot, a ban, a waiter, a session.
local function wake(member, at) call('ZADD', DUE, at, member) end
local function unwake(member) call('ZREM', DUE, member) end

-- answer is what every script returns: what the caller is to know of the store,
-- and the result.
local function answer(...)
  if meta.changed then
    call('HSET', META, 'token', str(meta.token), 'used', str(meta.used), 'n:acquired', str(meta.acquired))
  end
  return { meta.born, str(meta.token), ... }
end
