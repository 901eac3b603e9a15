-- begin makes a store where there is none, and sees whether one was lost: it is
-- another than the caller knows, or behind what the caller has seen.
local function begin()
  if not meta.born then
    meta.born = caller .. str(now)
    call('HSET', META, 'bornat', str(now))
    if not fresh then rare().quarantine(now + longest_ttl) end
  end
  if known ~= '' and known ~= meta.born then
    rare().quarantine(tonumber(call('HGET', META, 'bornat')) + longest_ttl)
  elseif known ~= '' and seen > meta.token then
    rare().quarantine(now + longest_ttl)
  end
  meta.token = math.max(meta.token, seen)
end

-- catch_up lets happen what is due, oldest first, at most a few thousand a call.
-- Whoever's script it is: so it needs no process that is alive.
local function catch_up()
  if meta.due > now then return end
  for _ = 1, 64 do
    local due = call('ZRANGEBYSCORE', DUE, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 64)
    for i = 1, #due, 2 do
      if call('ZREM', DUE, due[i]) == 1 then
        rare().ring[string.sub(due[i], 1, 1)](string.sub(due[i], 2), tonumber(due[i + 1]))
      end
    end
    if #due < 128 then break end
  end
  meta.due = tonumber(call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2] or never)
end

begin()
catch_up()
