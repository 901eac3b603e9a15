-- The ordinary acquire and release, the short way: most of a script's time goes into
-- defining functions, and these need none. They are ordinary where the store is the
-- one that the caller knows, nothing is due and nobody waits. Otherwise, and before
-- anything is written, the script goes on to the long way, which does the same.
local base, call = KEYS[1], redis.call
local m = call('HMGET', base .. 'meta', 'born', 'token', 'used', 'waiting', 'mark', 'n:acquired', 'epoch')
local ordinary = m[1] and m[1] == ARGV[1] and tonumber(m[2] or 0) >= tonumber(ARGV[2]) and (m[4] or '0') == '0'
  and #call('ZRANGEBYSCORE', base .. 'due', '-inf', now, 'LIMIT', 0, 1) == 0
