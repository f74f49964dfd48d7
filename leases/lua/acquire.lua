-- Grants KEYS[1] to a holder, or says who has it.
--
-- KEYS[1]  the lease's key; its value is `holder:token`, it always has a TTL
-- ARGV[1]  holder    unique per acquisition
-- ARGV[2]  ttl_ms    how long the grant lasts
-- ARGV[3]  floor     decimal string: the token granted is at least this
-- ARGV[4]  max_ms    no lease may last longer; a foreign TTL that is missing or longer is cut to it
--
-- Returns  {'granted', token} | {'held', holder, token, left_ms} | {'corrupt', value}; of a foreign value only its ASCII,
-- because a client that decodes answers would fail on others
--
-- Asking again as the same holder grants again, with the same token unless it is below `floor`: a lost reply, or a
-- client that repeats the call by itself, finds its own grant.
local key, holder, ttl_ms, floor, max_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

-- Tokens are compared as decimal strings: Lua numbers are doubles and end at 2^53.
local function below(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local value = redis.call('GET', key)
if value then
  local owner, token = string.match(value, '^([0-9a-f]+):([1-9]%d*)$')
  if not owner or #token > 18 then return {'corrupt', (string.gsub(value, '[^ -~]', '?'))} end
  if owner ~= holder then
    local left_ms = redis.call('PTTL', key)
    if left_ms < 0 or left_ms > max_ms then
      redis.call('PEXPIRE', key, max_ms)
      left_ms = max_ms
    end
    return {'held', owner, token, left_ms}
  end
  if not below(token, floor) then
    redis.call('PEXPIRE', key, ttl_ms)
    return {'granted', token}
  end
end

local now = redis.call('TIME')
local token = now[1] .. string.format('%06d', tonumber(now[2]))
if below(token, floor) then token = floor end
redis.call('SET', key, holder .. ':' .. token, 'PX', ttl_ms)
return {'granted', token}
