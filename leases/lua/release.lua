-- Gives a lease back, if it is still this holder's under this token, and wakes who waits for it.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  holder
-- ARGV[2]  token       decimal string
-- ARGV[3]  linger_ms   keep the key for this long, so that nobody starts the same work again at once; 0 = delete now
--
-- Publishes to the channel KEYS[1] when the key is deleted.
--
-- Returns  'released' | 'absent' | 'other'
local value = redis.call('GET', KEYS[1])
if not value then return 'absent' end
if value ~= ARGV[1] .. ':' .. ARGV[2] then return 'other' end
if ARGV[3] == '0' then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', KEYS[1], 'released')
else
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return 'released'
