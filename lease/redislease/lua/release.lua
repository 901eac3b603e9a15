-- release: ID, token, and "unused" where it was not used. It answers "ok", or why not.
local l, why = held(arg(1), arg(2))
if not l then return answer(why) end
call('INCR', base .. 'released')
finish(l, nil, arg(3) == 'unused')
return answer('ok')
