-- What every script begins with: the fleet's keys, the caller's settings, and the
-- counters that the store has only one of. All keys begin with KEYS[1], whose hash
-- tag keeps them in one slot of a cluster.
--
-- ARGV begins with the same three for every script; the script's own follow.
local call = redis.call -- as in quick.lua, for scripts without it
local base = KEYS[1]
local known = ARGV[1]                       -- the incarnation that the caller knows, or ''
local seen = tonumber(ARGV[2])              -- the highest token that it has seen
local settings = {}
for word in string.gmatch(ARGV[3], '%S+') do settings[#settings + 1] = word end
local caller = settings[1]                  -- a name for it, unlike any other's
local max_holders = tonumber(settings[2])
local lock_delay = tonumber(settings[3])
local longest_ttl = tonumber(settings[4])
local fresh = settings[5] == '1'            -- an empty store is a new one
local grace = tonumber(settings[6])         -- how long a waiter may be silent
local session_ttl = tonumber(settings[7])
local forget_after = tonumber(settings[8])  -- how long an ended ban is remembered
local function arg(n) return ARGV[3 + n] end

local never = 2 ^ 53 -- later than any time
local META, HOT, DUE = base .. 'meta', base .. 'hot', base .. 'due'

-- str writes a whole number in full: Lua's own way keeps 14 digits.
local function str(n) return string.format('%d', n) end

-- pairs_of makes a table of a flat reply: name, value, name, value.
local function pairs_of(flat)
  local t = {}
  for i = 1, #flat, 2 do t[flat[i]] = flat[i + 1] end
  return t
end

-- meta is what there is one of: the incarnation, the last token and use, before when
-- nothing is due, how many were acquired and how many wait, the highest of the marks
-- and their epoch (see pick.lua), how often classes have changed, how many selectors
-- are kept, until when nothing is leased.
local stored = call('HGET', HOT, 'state')
local meta = { token = 0, used = 0, due = never, acquired = 0, waiting = 0, mark = 0, epoch = 0, classing = 0, selectors = 0, quarantine = 0 }
if stored then
  meta.token, meta.used, meta.due, meta.acquired, meta.waiting, meta.mark, meta.epoch, meta.classing, meta.born, meta.selectors,
    meta.quarantine = struct.unpack('>ddddddddI4c0dd', stored)
end

-- next_use numbers the uses of endpoints, so that the least recent goes first.
local function next_use()
  meta.used = meta.used + 1
  return meta.used
end

-- next_token is higher than all before, than all that the caller has seen, and at
-- least the time.
local function next_token()
  meta.token = math.max(meta.token + 1, seen + 1, now)
  return meta.token
end

local function count(what, by) call('HINCRBY', META, 'n:' .. what, by or 1) end

-- wake has a member of DUE looked at when that time has come. Its first letter
-- says what it is: a lease, a slot, a ban, a waiter, a session.
local function wake(member, at)
  call('ZADD', DUE, str(at), member)
  meta.due = math.min(meta.due, at)
end
local function unwake(member) call('ZREM', DUE, member) end

-- answer is what every script returns: what the caller is to know of the store,
-- and the result.
local function answer(...)
  local state = struct.pack('>ddddddddI4c0dd', meta.token, meta.used, meta.due, meta.acquired, meta.waiting, meta.mark, meta.epoch,
    meta.classing, #meta.born, meta.born, meta.selectors, meta.quarantine)
  if state ~= stored then call('HSET', HOT, 'state', state) end
  return { meta.born, str(meta.token), ... }
end
