-- Every statement of the PostgreSQL store, by name. {records}, {leases}, {collections}, {entries}, {heads} are filled in as quoted names,
-- %(name)s are parameters. The body of a record is never cast: one NUL escape in it would fail the whole statement. Metadata are read as
-- text and decoded one by one in Python. An agent's turns are asked for twice over, by containment (Recall's own GIN index) and as our index of
-- turns has them, which knows the newest without reading all. "Now" is the server's clock, read once in a statement (MATERIALIZED: a plain subquery is evaluated
-- for every row). Times are read as seconds since 1970: a driver's datetime can hold neither infinity nor the year 10000.

-- name: find_tables
-- What is there, from the catalogue alone: no error for what is missing. Of the audit's two tables: how many are there, how many we may read.
SELECT
    EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s),
    (SELECT count(*) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
      WHERE n.nspname = %(schema)s AND c.relname IN ('recall_collections', 'recall_leases')),
    (SELECT count(*) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
      WHERE n.nspname = 'settle_audit' AND c.relname IN ('entries', 'heads')),
    (SELECT count(*) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
      WHERE n.nspname = 'settle_audit' AND c.relname IN ('entries', 'heads')
        AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')),
    extract(epoch FROM clock_timestamp())

-- name: find_collection
SELECT tbl, dim FROM {collections} WHERE name = %(collection)s

-- name: read_watch
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS at)
SELECT coalesce((SELECT revision FROM {collections} WHERE name = %(collection)s), 0),
    (SELECT extract(epoch FROM min(expires_at)) FROM {leases} WHERE collection = %(collection)s AND expires_at > clock.at),
    coalesce((SELECT number FROM {heads} WHERE chain = %(chain)s), 0),
    extract(epoch FROM clock.at)
FROM clock

-- name: read_watch_without_audit
-- The third column: whether there is an audit by now that we may read.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS at)
SELECT coalesce((SELECT revision FROM {collections} WHERE name = %(collection)s), 0),
    (SELECT extract(epoch FROM min(expires_at)) FROM {leases} WHERE collection = %(collection)s AND expires_at > clock.at),
    (SELECT count(*) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
      WHERE n.nspname = 'settle_audit' AND c.relname IN ('entries', 'heads')
        AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')) = 2,
    extract(epoch FROM clock.at)
FROM clock

-- name: read_actions
-- The condition stands twice on purpose: containment fits Recall's own GIN index, the second form our partial index (which is used only
-- where the query repeats its condition literally). The planner takes whichever is cheaper. Metadata as Recall writes them come value by
-- value, any others whole: turning thousands into text and reading them again would be half the work. Times are whole microseconds.
WITH clock AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at)
SELECT found.id,
    CASE WHEN found.metadata - '{{record,recall_agent,body,act,class,status,page,seq,epoch}}'::text[] = '{{}}'
        AND jsonb_typeof(found.metadata->'recall_agent') = 'string' AND jsonb_typeof(found.metadata->'body') = 'string'
        AND jsonb_typeof(found.metadata->'act') = 'string' AND jsonb_typeof(found.metadata->'class') = 'string'
        AND length(found.metadata->>'page') < 19 AND length(found.metadata->>'seq') < 19 AND length(found.metadata->>'epoch') < 19
        AND jsonb_typeof(found.metadata->'epoch') = 'number'
        THEN NULL ELSE found.metadata::text END,
    found.metadata->>'body', found.metadata->>'act', found.metadata->>'class', found.metadata->>'status',
    found.metadata->>'recall_agent', found.metadata->>'epoch',
    l.name, l.holder, l.epoch,
    (extract(epoch FROM least(greatest(l.expires_at, '0001-01-01Z'), '9999-12-31 23:59:59Z')) * 1000000)::bigint, clock.at
FROM clock
CROSS JOIN (
    SELECT id, metadata FROM {records}
    WHERE ({contained}) AND metadata->>'record' = 'action' AND metadata->>'status' IN ({statuses}) AND {of_agent}
    ORDER BY id COLLATE "C" LIMIT %(limit)s
) AS found
LEFT JOIN {leases} AS l ON l.collection = %(collection)s AND l.name = found.metadata->>'recall_agent'
ORDER BY found.id COLLATE "C"

-- name: get_action
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS at)
SELECT t.id, t.metadata::text, l.name, l.holder, l.epoch, extract(epoch FROM l.expires_at), extract(epoch FROM clock.at)
FROM clock
JOIN {records} AS t ON t.id = %(id)s
LEFT JOIN {leases} AS l ON l.collection = %(collection)s AND l.name = t.metadata->>'recall_agent'

-- name: list_agent_actions
-- By the number in the id, which alone is unique; an id without one comes last.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS at)
SELECT found.id, found.metadata::text, l.name, l.holder, l.epoch, extract(epoch FROM l.expires_at), extract(epoch FROM clock.at)
FROM clock
CROSS JOIN (
    SELECT id, metadata, substring(id FROM ':act:([0-9]{{1,18}})$')::bigint AS number FROM {records}
    WHERE metadata @> jsonb_build_object('recall_agent', %(agent)s::text, 'record', 'action')
) AS found
LEFT JOIN {leases} AS l ON l.collection = %(collection)s AND l.name = %(agent)s
WHERE %(before)s::numeric IS NULL OR found.number < %(before)s::numeric
ORDER BY found.number DESC NULLS LAST, found.id COLLATE "C" DESC LIMIT %(limit)s

-- name: list_turns
-- The agent as a row of its own, here and in every statement that wants an agent's newest turns: where the planner sees the name, or thinks of
-- the average agent's few turns, it reads all of a busy one's to sort them; so it goes down our index, where that is there.
SELECT found.id, found.metadata
FROM unnest(ARRAY[%(agent)s::text]) AS wanted (agent)
CROSS JOIN LATERAL (
    SELECT id, metadata::text AS metadata FROM {records}
    WHERE metadata @> jsonb_build_object('recall_agent', wanted.agent, 'record', 'turn')
        AND metadata->>'recall_agent' = wanted.agent AND metadata->>'record' = 'turn'
    ORDER BY substring(id FROM ':turn:([0-9]{{1,18}})$')::bigint DESC NULLS LAST, id COLLATE "C" DESC LIMIT %(limit)s
) AS found

-- name: list_turns_before
-- A statement of its own, so that the index is entered at the number.
SELECT found.id, found.metadata
FROM unnest(ARRAY[%(agent)s::text]) AS wanted (agent)
CROSS JOIN LATERAL (
    SELECT id, metadata::text AS metadata FROM {records}
    WHERE metadata @> jsonb_build_object('recall_agent', wanted.agent, 'record', 'turn')
        AND metadata->>'recall_agent' = wanted.agent AND metadata->>'record' = 'turn'
        AND substring(id FROM ':turn:([0-9]{{1,18}})$')::bigint < %(before)s::bigint
    ORDER BY substring(id FROM ':turn:([0-9]{{1,18}})$')::bigint DESC NULLS LAST, id COLLATE "C" DESC LIMIT %(limit)s
) AS found

-- name: read_last_turns
SELECT wanted.agent, found.id, found.metadata
FROM unnest(%(agents)s::text[]) AS wanted (agent)
CROSS JOIN LATERAL (
    SELECT id, metadata::text AS metadata FROM {records}
    WHERE metadata @> jsonb_build_object('recall_agent', wanted.agent, 'record', 'turn')
        AND metadata->>'recall_agent' = wanted.agent AND metadata->>'record' = 'turn'
    ORDER BY substring(id FROM ':turn:([0-9]{{1,18}})$')::bigint DESC NULLS LAST, id COLLATE "C" DESC LIMIT 1
) AS found

-- name: list_working_states
SELECT id, metadata::text
FROM (
    SELECT id, metadata, substring(id FROM ':ws:([0-9]{{1,18}})$')::bigint AS number FROM {records}
    WHERE metadata @> jsonb_build_object('recall_agent', %(agent)s::text, 'record', 'working_state')
) AS found
WHERE %(before)s::numeric IS NULL OR number < %(before)s::numeric
ORDER BY number DESC NULLS LAST, id COLLATE "C" DESC LIMIT %(limit)s

-- name: list_pointers
SELECT id, metadata::text FROM {records}
WHERE metadata @> jsonb_build_object('recall_agent', %(agent)s::text, 'record', 'pointer') AND NOT metadata @> '{{"removed": true}}'
ORDER BY id COLLATE "C" LIMIT %(limit)s

-- name: list_outputs
SELECT id, metadata::text FROM {records}
WHERE metadata @> jsonb_build_object('recall_agent', %(agent)s::text, 'record', 'output')
ORDER BY id COLLATE "C" LIMIT %(limit)s

-- name: read_records
SELECT id, metadata::text FROM {records} WHERE id = ANY(%(ids)s)

-- name: find_lease
-- No lock: one would stall the agent's writes and renewals.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS at)
SELECT l.name, l.holder, l.epoch, extract(epoch FROM l.expires_at), extract(epoch FROM clock.at)
FROM clock
JOIN {leases} AS l ON l.collection = %(collection)s AND l.name = %(agent)s

-- name: read_leases
-- Of all agents, those that end last first. Whole microseconds, as in read_actions. No lock.
WITH clock AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at)
SELECT l.name, l.holder, l.epoch,
    (extract(epoch FROM least(greatest(l.expires_at, '0001-01-01Z'), '9999-12-31 23:59:59Z')) * 1000000)::bigint, clock.at
FROM clock
CROSS JOIN (
    SELECT name, holder, epoch, expires_at FROM {leases} WHERE collection = %(collection)s
    ORDER BY expires_at DESC, name COLLATE "C" LIMIT %(limit)s
) AS l
ORDER BY l.expires_at DESC, l.name COLLATE "C"

-- name: settle_look
-- Statement 1 of a settle: what this decision id wrote before, and whether there is anything to settle. Locks nothing.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS at)
SELECT e.number, e.text, e.prev, e.hash, t.metadata::text, l.name, l.holder, l.epoch, extract(epoch FROM l.expires_at), extract(epoch FROM clock.at)
FROM clock
LEFT JOIN {entries} AS e ON e.chain = %(chain)s AND e.kind = 'settled' AND e.decision_id <> '' AND e.decision_id = %(decision_id)s
LEFT JOIN {records} AS t ON t.id = %(id)s
LEFT JOIN {leases} AS l ON l.collection = %(collection)s AND l.name = %(agent)s

-- name: settle_take_lease
-- Statement 2: the lease, if and only if nobody holds it (recall-records 9.1), and what it was before. `found` is read first, under its
-- lock, because the insert counts it: so it is exactly what the update replaces. No epoch in the answer: somebody holds it.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS at), found AS MATERIALIZED (
    SELECT name, holder, epoch, expires_at FROM {leases} WHERE collection = %(collection)s AND name = %(agent)s FOR UPDATE
), taken AS (
    INSERT INTO {leases} AS l (collection, name, holder, epoch, expires_at)
    SELECT %(collection)s, %(agent)s, %(holder)s, 1, clock_timestamp() + %(ttl)s
    FROM (SELECT count(*) FROM found) AS after_found
    ON CONFLICT (collection, name) DO UPDATE SET holder = EXCLUDED.holder, epoch = l.epoch + 1, expires_at = EXCLUDED.expires_at
    WHERE l.expires_at <= clock_timestamp()
    RETURNING epoch
)
SELECT taken.epoch, found.name, found.holder, found.epoch, extract(epoch FROM found.expires_at), extract(epoch FROM clock.at)
FROM clock LEFT JOIN taken ON true LEFT JOIN found ON true

-- name: settle_lock_records
-- Statement 3: the action and the output of its arguments as nobody else may write them now, and the newest turn. A statement of its own
-- after the lease, so that it sees the agent's last write (one fused with the lease saw an old snapshot and collided). It is sent together
-- with the lease's: where that is not ours now, there is no row, and nothing is locked.
SELECT id, metadata::text,
    coalesce((
        SELECT found.number FROM unnest(ARRAY[%(agent)s::text]) AS wanted (agent)
        CROSS JOIN LATERAL (
            SELECT substring(id FROM ':turn:([0-9]{{1,18}})$')::bigint AS number FROM {records}
            WHERE metadata @> jsonb_build_object('recall_agent', wanted.agent, 'record', 'turn')
                AND metadata->>'recall_agent' = wanted.agent AND metadata->>'record' = 'turn'
            ORDER BY substring(id FROM ':turn:([0-9]{{1,18}})$')::bigint DESC NULLS LAST LIMIT 1
        ) AS found), 0),
    (SELECT metadata::text FROM {records} WHERE id = %(head)s),
    extract(epoch FROM clock_timestamp())
FROM {records} WHERE id = ANY(%(ids)s)
    AND EXISTS (SELECT FROM {leases} WHERE collection = %(collection)s AND name = %(agent)s AND holder = %(holder)s)
ORDER BY id FOR UPDATE

-- name: settle_write
-- Statement 5: the action, keeping every key of its metadata that we do not write; the turn by a plain INSERT, which fails rather than
-- destroy one of the agent's; the output of a long result, which a crashed agent may have left there already. Of a correction the turn alone.
WITH closed AS (
    UPDATE {records} SET metadata = metadata || %(action)s::jsonb WHERE id = %(action_id)s AND %(action)s::jsonb IS NOT NULL RETURNING 1
), told AS (
    INSERT INTO {records} (id, embedding, metadata)
    SELECT %(turn_id)s, array_fill(0::real, ARRAY[%(dim)s::integer]), %(turn)s::jsonb WHERE %(turn)s::jsonb IS NOT NULL RETURNING 1
), kept AS (
    INSERT INTO {records} (id, embedding, metadata)
    SELECT %(output_id)s::text, array_fill(0::real, ARRAY[%(dim)s::integer]), %(output)s::jsonb WHERE %(output_id)s::text IS NOT NULL
    ON CONFLICT (id) DO UPDATE SET metadata = EXCLUDED.metadata RETURNING 1
)
SELECT (SELECT count(*) FROM closed), (SELECT count(*) FROM told), (SELECT count(*) FROM kept)

-- name: lock_head
-- Statement 4 of a settle: one writer of the chain at a time from here to the commit. The first one makes the row.
INSERT INTO {heads} AS h (chain, number, hash) VALUES (%(chain)s, 0, %(genesis)s)
ON CONFLICT (chain) DO UPDATE SET number = h.number
RETURNING number, hash, extract(epoch FROM clock_timestamp())

-- name: settle_finish
-- Statement 6: entry, head, release, and last the revision, because that row serialises all writers of the store. Each must be one row.
WITH entry AS (
    INSERT INTO {entries} (chain, number, at, kind, actor, agent, seq, tool, decision_id, outcome, text, prev, hash)
    VALUES (%(chain)s, %(number)s, %(at)s, %(kind)s, %(actor)s, %(agent)s, %(seq)s, %(tool)s, %(decision_id)s, %(outcome)s, %(text)s,
        %(prev)s, %(hash)s) RETURNING 1
), head AS (
    UPDATE {heads} SET number = %(number)s, hash = %(hash)s WHERE chain = %(chain)s AND number = %(number)s - 1 RETURNING 1
), released AS (
    UPDATE {leases} SET epoch = epoch + 1, expires_at = to_timestamp(0)
    WHERE collection = %(collection)s AND name = %(lease_agent)s AND epoch = %(epoch)s AND holder = %(holder)s RETURNING 1
), moved AS (
    UPDATE {collections} SET revision = revision + %(records)s WHERE name = %(collection)s RETURNING 1
)
SELECT (SELECT count(*) FROM entry), (SELECT count(*) FROM head), (SELECT count(*) FROM released), (SELECT count(*) FROM moved)

-- name: evict_lock_lease
-- Statement 1 of an eviction: the lease as nobody else can write it any more. The holder's fenced writes and its renewal wait, or were first.
-- The clock is read after the wait for it: one that expired meanwhile is not live.
WITH found AS MATERIALIZED (
    SELECT name, holder, epoch, expires_at FROM {leases} WHERE collection = %(collection)s AND name = %(agent)s FOR UPDATE
), clock AS MATERIALIZED (SELECT clock_timestamp() AS at FROM (SELECT count(*) FROM found) AS after_found)
SELECT found.name, found.holder, found.epoch, extract(epoch FROM found.expires_at), extract(epoch FROM clock.at) FROM found, clock

-- name: evict_finish
-- The last statement: entry, head, and the lease, released under the next epoch. Each must be one row.
WITH entry AS (
    INSERT INTO {entries} (chain, number, at, kind, actor, agent, seq, tool, decision_id, outcome, text, prev, hash)
    VALUES (%(chain)s, %(number)s, %(at)s, %(kind)s, %(actor)s, %(agent)s, %(seq)s, %(tool)s, %(decision_id)s, %(outcome)s, %(text)s,
        %(prev)s, %(hash)s) RETURNING 1
), head AS (
    UPDATE {heads} SET number = %(number)s, hash = %(hash)s WHERE chain = %(chain)s AND number = %(number)s - 1 RETURNING 1
), released AS (
    UPDATE {leases} SET epoch = epoch + 1, expires_at = to_timestamp(0)
    WHERE collection = %(collection)s AND name = %(lease_agent)s AND epoch = %(epoch)s AND holder = %(holder)s RETURNING 1
)
SELECT (SELECT count(*) FROM entry), (SELECT count(*) FROM head), (SELECT count(*) FROM released)

-- name: find_eviction
SELECT number, text, prev, hash FROM {entries}
WHERE chain = %(chain)s AND agent = %(agent)s AND kind = 'evicted' AND decision_id = %(decision_id)s ORDER BY number LIMIT 1

-- name: append_entry
WITH entry AS (
    INSERT INTO {entries} (chain, number, at, kind, actor, agent, seq, tool, decision_id, outcome, text, prev, hash)
    VALUES (%(chain)s, %(number)s, %(at)s, %(kind)s, %(actor)s, %(agent)s, %(seq)s, %(tool)s, %(decision_id)s, %(outcome)s, %(text)s,
        %(prev)s, %(hash)s) RETURNING 1
), head AS (
    UPDATE {heads} SET number = %(number)s, hash = %(hash)s WHERE chain = %(chain)s AND number = %(number)s - 1 RETURNING 1
)
SELECT (SELECT count(*) FROM entry), (SELECT count(*) FROM head)

-- name: find_settled_entry
SELECT number, text, prev, hash FROM {entries}
WHERE chain = %(chain)s AND kind = 'settled' AND decision_id <> '' AND decision_id = %(decision_id)s

-- name: find_settling_entries
SELECT number, text, prev, hash FROM {entries}
WHERE chain = %(chain)s AND kind = 'settling' AND decision_id <> '' AND decision_id = %(decision_id)s ORDER BY number

-- name: list_settling_entries
SELECT number, text, prev, hash FROM {entries}
WHERE chain = %(chain)s AND agent = %(agent)s AND seq = %(seq)s AND kind = 'settling' ORDER BY number DESC LIMIT %(limit)s

-- name: find_entry_of_action
SELECT number, text, prev, hash FROM {entries}
WHERE chain = %(chain)s AND agent = %(agent)s AND seq = %(seq)s AND kind = 'settled' ORDER BY number DESC LIMIT 1

-- name: list_endings
SELECT number, text, prev, hash FROM {entries}
WHERE chain = %(chain)s AND agent = %(agent)s AND seq = %(seq)s AND kind = ANY(%(kinds)s) ORDER BY number DESC LIMIT %(limit)s

-- name: list_entries
SELECT number, text, prev, hash FROM {entries}
WHERE chain = %(chain)s AND {conditions}
ORDER BY number DESC LIMIT %(limit)s

-- name: iterate_links
-- With the columns beside the text, which everything searches by and the hash does not cover.
SELECT number, text, prev, hash, extract(epoch FROM at), kind, actor, agent, seq, tool, decision_id, outcome FROM {entries} WHERE chain = %(chain)s AND number > %(after)s ORDER BY number LIMIT %(limit)s

-- name: read_head
SELECT number, hash FROM {heads} WHERE chain = %(chain)s

-- name: discover_schemas
-- Where Recall's registry and leases stand. From the catalogue alone.
SELECT n.nspname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname IN ('recall_collections', 'recall_leases') AND (%(only)s::text IS NULL OR n.nspname = %(only)s::text)
GROUP BY n.nspname HAVING count(*) = 2 ORDER BY n.nspname LIMIT %(limit)s

-- name: discover_collections
SELECT name, tbl FROM {collections} WHERE right(name, 7) = '_agents' OR right(name, 6) = '__keys' ORDER BY name COLLATE "C" LIMIT %(limit)s

-- name: discover_namespaces
-- Of a key's record nothing but the namespace leaves the database.
SELECT DISTINCT metadata->>'namespace' FROM {records} WHERE metadata @> '{{"kind": "key"}}' ORDER BY 1 LIMIT %(limit)s

-- name: discover_counts
SELECT (SELECT count(*) FROM (SELECT 1 FROM {leases} WHERE collection = %(collection)s LIMIT %(limit)s) AS known),
    (SELECT count(*) FROM (
        SELECT 1 FROM {records}
        WHERE (metadata @> '{{"record": "action", "status": "started"}}'::jsonb OR metadata @> '{{"record": "action", "status": "unknown"}}'::jsonb)
            AND metadata->>'record' = 'action' AND metadata->>'status' IN ('started', 'unknown')
        LIMIT %(limit)s) AS opened)

-- name: find_entry_hash
SELECT hash FROM {entries} WHERE chain = %(chain)s AND number = %(number)s

-- name: lift_finality
ALTER TABLE {entries} DISABLE TRIGGER entries_are_final

-- name: remove_entries
DELETE FROM {entries} WHERE chain = %(chain)s AND number <= %(number)s

-- name: restore_finality
ALTER TABLE {entries} ENABLE ALWAYS TRIGGER entries_are_final

-- name: acquire_lease
-- By an agent's process (recall-records 5.2). No row: somebody holds it. A transaction by itself, as the next three.
INSERT INTO {leases} AS l (collection, name, holder, epoch, expires_at)
VALUES (%(collection)s, %(agent)s, %(holder)s, 1, clock_timestamp() + %(ttl)s)
ON CONFLICT (collection, name) DO UPDATE SET holder = EXCLUDED.holder, epoch = l.epoch + 1, expires_at = clock_timestamp() + %(ttl)s
WHERE l.expires_at <= clock_timestamp()
RETURNING l.name, l.holder, l.epoch, extract(epoch FROM l.expires_at), extract(epoch FROM clock_timestamp())

-- name: renew_lease
-- Each renewal whose answer was lost may have raised the epoch by one.
UPDATE {leases} SET epoch = epoch + 1, expires_at = clock_timestamp() + %(ttl)s
WHERE collection = %(collection)s AND name = %(agent)s AND holder = %(holder)s AND epoch BETWEEN %(epoch)s AND %(last_epoch)s
    AND expires_at > to_timestamp(0)
RETURNING name, holder, epoch, extract(epoch FROM expires_at), extract(epoch FROM clock_timestamp())

-- name: release_lease
UPDATE {leases} SET epoch = epoch + 1, expires_at = to_timestamp(0)
WHERE collection = %(collection)s AND name = %(agent)s AND holder = %(holder)s AND epoch BETWEEN %(epoch)s AND %(last_epoch)s
    AND expires_at > to_timestamp(0)

-- name: write_new
-- An agent's write of records that are all new: the fence, the records, last the revision. The lease's row is shared-locked: a takeover waits
-- for us, and where we waited for one the row is looked at again as it left it. The records come as one JSON text: as arrays of texts they
-- cost more than the rest of the statement. Shorter than write_records because it stands between every tool and its call.
WITH fence AS MATERIALIZED (
    SELECT 1 FROM {leases} WHERE collection = %(collection)s AND name = %(agent)s AND holder = %(holder)s AND epoch >= %(epoch)s
        AND expires_at > to_timestamp(0) FOR SHARE
), inserted AS (
    INSERT INTO {records} (id, embedding, metadata)
    SELECT c.id, array_fill(0::real, ARRAY[%(dim)s::integer]), c.metadata
    FROM fence CROSS JOIN jsonb_to_recordset(%(changes)s::jsonb) AS c (id text, metadata jsonb) RETURNING 1
), moved AS (
    UPDATE {collections} SET revision = revision + %(records)s FROM fence WHERE name = %(collection)s RETURNING 1
)
SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM fence), (SELECT count(*) FROM inserted), (SELECT count(*) FROM moved)

-- name: write_records
-- An agent's write of any records, as write_new, each on its condition. Everything hangs on `allowed`: it is all or nothing.
-- Records that stay keep their embedding; no agent operation searches by it. `coalesce` keeps the planner off the partial index of open
-- actions, which it takes for nearly empty and would read whole: the primary key finds these. No array of ids: its unknown length makes the
-- general plan look dear, and each write would be planned anew.
WITH given AS MATERIALIZED (
    SELECT c.id, c.condition, c.metadata FROM jsonb_to_recordset(%(changes)s::jsonb) AS c (id text, condition text, metadata jsonb)
), fence AS MATERIALIZED (
    SELECT 1 FROM {leases} WHERE collection = %(collection)s AND name = %(agent)s AND holder = %(holder)s AND epoch >= %(epoch)s
        AND expires_at > to_timestamp(0) FOR SHARE
), opened AS MATERIALIZED (
    SELECT r.id FROM fence CROSS JOIN given AS c JOIN {records} AS r ON r.id = c.id
    WHERE c.condition = 'open' AND r.metadata->>'record' = 'action' AND coalesce(r.metadata->>'status', '') IN ('started', 'unknown')
    FOR UPDATE OF r
), allowed AS MATERIALIZED (
    SELECT 1 FROM fence WHERE (SELECT count(*) FROM opened) = (SELECT count(*) FROM given WHERE condition = 'open')
), closed AS (
    UPDATE {records} AS r SET metadata = c.metadata
    FROM allowed CROSS JOIN given AS c WHERE r.id = c.id AND c.condition = 'open' RETURNING 1
), replaced AS (
    INSERT INTO {records} (id, embedding, metadata)
    SELECT c.id, array_fill(0::real, ARRAY[%(dim)s::integer]), c.metadata
    FROM allowed CROSS JOIN given AS c WHERE c.condition = 'any'
    ON CONFLICT (id) DO UPDATE SET metadata = EXCLUDED.metadata RETURNING 1
), inserted AS (
    INSERT INTO {records} (id, embedding, metadata)
    SELECT c.id, array_fill(0::real, ARRAY[%(dim)s::integer]), c.metadata
    FROM allowed CROSS JOIN given AS c WHERE c.condition = 'new' RETURNING 1
), moved AS (
    UPDATE {collections} SET revision = revision + %(records)s FROM allowed WHERE name = %(collection)s RETURNING 1
)
SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM allowed),
    (SELECT count(*) FROM closed) + (SELECT count(*) FROM replaced) + (SELECT count(*) FROM inserted), (SELECT count(*) FROM moved)

-- name: load_agent
-- All that a process starts from, in one statement and so at one moment: kind, id, metadata.
SELECT 'head', id, metadata::text FROM {records} WHERE id = %(head)s
UNION ALL
SELECT 'action', id, metadata::text FROM {records}
WHERE metadata @> jsonb_build_object('recall_agent', %(agent)s::text, 'record', 'action') AND metadata->>'status' IN ('started', 'unknown')
UNION ALL
(SELECT 'pointer', id, metadata::text FROM {records}
WHERE metadata @> jsonb_build_object('recall_agent', %(agent)s::text, 'record', 'pointer') AND NOT metadata @> '{{"removed": true}}'
ORDER BY id COLLATE "C" LIMIT %(pointers)s)
UNION ALL
(SELECT 'output', id, metadata::text FROM {records}
WHERE metadata @> jsonb_build_object('recall_agent', %(agent)s::text, 'record', 'output')
ORDER BY id COLLATE "C" LIMIT %(outputs)s)
UNION ALL
SELECT 'turn', found.id, found.metadata FROM unnest(ARRAY[%(agent)s::text]) AS wanted (agent)
CROSS JOIN LATERAL (
    SELECT id, metadata::text AS metadata FROM {records}
    WHERE metadata @> jsonb_build_object('recall_agent', wanted.agent, 'record', 'turn')
        AND metadata->>'recall_agent' = wanted.agent AND metadata->>'record' = 'turn'
    ORDER BY substring(id FROM ':turn:([0-9]{{1,18}})$')::bigint DESC NULLS LAST, id COLLATE "C" DESC LIMIT %(turns)s
) AS found
UNION ALL
SELECT 'largest_turn', found.number::text, NULL FROM unnest(ARRAY[%(agent)s::text]) AS wanted (agent)
CROSS JOIN LATERAL (
    SELECT substring(id FROM ':turn:([0-9]{{1,18}})$')::bigint AS number FROM {records}
    WHERE metadata @> jsonb_build_object('recall_agent', wanted.agent, 'record', 'turn')
        AND metadata->>'recall_agent' = wanted.agent AND metadata->>'record' = 'turn'
    ORDER BY substring(id FROM ':turn:([0-9]{{1,18}})$')::bigint DESC NULLS LAST LIMIT 1
) AS found
UNION ALL
SELECT 'largest_action', max(substring(id FROM ':act:([0-9]{{1,18}})$')::bigint)::text, NULL FROM {records}
WHERE metadata @> jsonb_build_object('recall_agent', %(agent)s::text, 'record', 'action')
UNION ALL
SELECT 'lease', l.name, json_build_array(l.holder, l.epoch, extract(epoch FROM l.expires_at)::text, extract(epoch FROM clock_timestamp())::text)::text
FROM {leases} AS l WHERE l.collection = %(collection)s AND l.name = %(agent)s
