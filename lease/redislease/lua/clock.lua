-- now is the server's time in microseconds since 1970. All deadlines are by it.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
