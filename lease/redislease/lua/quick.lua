-- The ordinary acquire and release, the short way: most of a script's time goes into
-- defining functions, and these need none. They are ordinary where the store is the
-- one that the caller knows, nothing is due and nobody waits. Otherwise, and before
-- anything is written, the script goes on to the long way, which does the same. It
-- answers in one text: tables take time, in commands' replies too.
local base, call = KEYS[1], redis.call
local hot = base .. 'hot'
-- An acquire, which has more arguments, reads with the store's state what there is to
-- know of its selector and of its domain.
local state, matching, banning
if ARGV[9] then
  local all = call('HMGET', hot, 'state', ARGV[5], 'd:' .. ARGV[6])
  state, matching, banning = all[1], all[2], all[3]
else
  state = call('HGET', hot, 'state')
end
local token, used, due, acquired, waiting, mark, epoch, classing, born
if state then token, used, due, acquired, waiting, mark, epoch, classing, born = struct.unpack('>ddddddddI4c0', state) end
local ordinary = born == ARGV[1] and token >= tonumber(ARGV[2]) and waiting == 0 and due > now
