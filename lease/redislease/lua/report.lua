-- report: ID, token, kind, domain, what the target asks to wait, proxy cooldown and
-- its limit, domain cooldown and its limit, the outcome for readers. Of the
-- failures of leases that were held at one time the first counts: one outage is
-- one fault. It answers "ok" or "late", or why not.
local function escalate(pause, limit, failures)
  return math.min(pause * 2 ^ math.min(failures - 1, 30), limit)
end

local l, why = held(arg(1), arg(2))
if why == 'wrong' then return answer(why) end
local kind, domain = arg(3), arg(4)
count('outcome:' .. kind)
if not l then
  count('late')
  return answer('late')
end
if domain == '' then domain = l.domain end
local token, s, bans = tonumber(l.token), load(l.of), rare()
local still = s and current(l, s)
local face = still and s.face or l.former and l.former.face -- of a former one, its address

if kind == 'ok' then
  local b = face and domain ~= '' and bans.ban_of(face, domain)
  if b and b.n > 0 and token > b.token then
    call('HSET', base .. 'bans:' .. domain, face, '0 ' .. str(b.token))
  end
  if still and token > s.faulted and not s.proven then
    s.faults, s.proven = 0, true
    settle(s)
  end
elseif kind == 'proxy_fault' then
  if still and token > s.faulted then
    s.faults, s.faulted, s.proven = s.faults + 1, meta.token, false
    s.cool = math.max(s.cool, now + escalate(tonumber(arg(6)), tonumber(arg(7)), s.faults))
    settle(s)
  end
  call('XADD', base .. 'reports', 'MAXLEN', '~', 4096, '*', 'id', l.of, 'gen', l.former and l.former.gen or call('HGET', base .. 'e:' .. l.of, 'gen'), 'holder', l.holder, 'outcome', arg(10))
  call('PUBLISH', base .. 'reports', '')
elseif kind == 'target_blocked' and face and domain ~= '' then
  local b = bans.ban_of(face, domain)
  if token > b.token then
    local limit = tonumber(arg(9))
    local pause = math.min(math.max(escalate(tonumber(arg(8)), limit, b.n + 1), tonumber(arg(5))), limit)
    bans.set_ban(face, domain, { till = math.max(b.till, now + pause), n = b.n + 1, token = meta.token })
  end
end
return answer('ok')
