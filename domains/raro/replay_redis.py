"""The replay buffer in a server: redis, one script per insertion, JSON values.

Behaves as the SQLite file does (`PairBuffer`), with which its copies share the format. Chosen by
`raro.replay.backend=redis`.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import redis

from domains.raro.pairs import Pair, ReplayStats
from domains.raro.replay import Mode, ReplayBuffer, check_intact

# KEYS: rows (sorted set of seq), values (hash seq -> JSON), shas (hash sha -> seq), meta (hash).
# ARGV: sha, JSON, capacity, mode, one draw in [0, 1) that decides, one that picks.
_PUT = """
if redis.call('HEXISTS', KEYS[3], ARGV[1]) == 1 then
  redis.call('HINCRBY', KEYS[4], 'duplicates', 1)
  return 0
end
local arrivals = redis.call('HINCRBY', KEYS[4], 'arrivals', 1)
local rows = redis.call('ZCARD', KEYS[1])
local capacity = tonumber(ARGV[3])
if rows >= capacity then
  local place = 0
  if ARGV[4] == 'reservoir' then
    if tonumber(ARGV[5]) >= capacity / arrivals then return 1 end
    place = math.floor(tonumber(ARGV[6]) * rows)
  end
  local old = redis.call('ZRANGE', KEYS[1], place, place)[1]
  redis.call('ZREM', KEYS[1], old)
  local value = cjson.decode(redis.call('HGET', KEYS[2], old))
  redis.call('HDEL', KEYS[3], value['sha'])
  redis.call('HDEL', KEYS[2], old)
end
local seq = redis.call('HINCRBY', KEYS[4], 'seq', 1)
redis.call('ZADD', KEYS[1], seq, seq)
redis.call('HSET', KEYS[2], seq, ARGV[2])
redis.call('HSET', KEYS[3], ARGV[1], seq)
return 1
"""


class RedisReplayBuffer:
    """The `PairBuffer` in a server, below `raro:<run id>:` in the database of `url`."""

    def __init__(
        self, url: str, run_id: str, capacity: int = 20_000, mode: Mode = "fifo", rng: Random | None = None
    ) -> None:
        self.capacity, self.mode, self.run_id = capacity, mode, run_id
        self._rng = rng or Random()
        self._redis: Any = redis.Redis.from_url(url, decode_responses=True)
        self._keys = [f"raro:{run_id}:{name}" for name in ("rows", "values", "shas", "meta")]
        self._put = self._redis.register_script(_PUT)

    def watermark(self) -> int:
        last = self._redis.zrevrange(self._keys[0], 0, 0)
        return int(last[0]) if last else 0

    def put(self, pair: Pair) -> bool:
        draws = [self._rng.random(), self._rng.random()]
        args = [pair.sha, _value(pair), self.capacity, self.mode, *draws]
        return bool(self._put(keys=self._keys, args=args))

    def sample(self, rng: Random, n: int, at_or_below: int) -> list[Pair]:
        rows = int(self._redis.zcount(self._keys[0], "-inf", at_or_below))
        found: list[Pair] = []
        while rows and len(found) < n:
            place = rng.randrange(rows)
            seq = self._redis.zrange(self._keys[0], place, place)
            value = self._redis.hget(self._keys[1], seq[0]) if seq else None
            if value is None:  # evicted between the two calls; another draw is as uniform
                rows = int(self._redis.zcount(self._keys[0], "-inf", at_or_below))
                continue
            found.append(_pair(value, int(seq[0])))
        return found

    def stats(self) -> ReplayStats:
        meta = self._redis.hgetall(self._keys[3])
        arrivals, duplicates = (int(meta.get(name, 0)) for name in ("arrivals", "duplicates"))
        return ReplayStats(int(self._redis.zcard(self._keys[0])), arrivals, duplicates, self.watermark())

    def backup(self, path: Path) -> None:
        """A SQLite file with the same rows, numbers and counters."""
        beside = path.with_name(f"~~{path.name}")
        beside.unlink(missing_ok=True)
        stats = self.stats()
        copy = ReplayBuffer(beside, capacity=2**62, run_id=self.run_id)
        copy.load(list(self._all()), stats.arrivals, stats.duplicates)
        copy.backup(path)
        copy.close()
        beside.unlink()

    def restore(self, path: Path) -> None:
        check_intact(path)
        copy = ReplayBuffer(path)
        stats, rows = copy.stats(), copy.rows()
        copy.close()
        pipe = self._redis.pipeline()
        pipe.delete(*self._keys)
        for pair in rows:
            pipe.zadd(self._keys[0], {str(pair.seq): pair.seq})
            pipe.hset(self._keys[1], str(pair.seq), _value(pair))
            pipe.hset(self._keys[2], pair.sha, pair.seq)
        meta = {"arrivals": stats.arrivals, "duplicates": stats.duplicates, "seq": stats.watermark}
        pipe.hset(self._keys[3], mapping=meta)
        pipe.execute()

    def clear(self) -> None:
        """Forget every pair and counter."""
        self._redis.delete(*self._keys)

    def close(self) -> None:
        self._redis.close()

    def _all(self) -> Iterator[Pair]:
        for seq in self._redis.zrange(self._keys[0], 0, -1):
            value = self._redis.hget(self._keys[1], seq)
            if value is not None:
                yield _pair(value, int(seq))


def _value(pair: Pair) -> str:
    return json.dumps({**asdict(pair), "sha": pair.sha}, ensure_ascii=False)


def _pair(value: str, seq: int) -> Pair:
    fields = json.loads(value)
    fields.pop("sha")
    return Pair(**{**fields, "seq": seq})
