-- What is ours in a store's database, version 2: the audit entries, which must commit with the actions that they describe. The same schema
-- keeps, in the console's database, the chains of those stores whose own server cannot hold them.
-- Entries are only ever inserted. The trigger refuses everybody, the owner too; retention is a separate command of the owner's.

CREATE SCHEMA IF NOT EXISTS settle_audit;

CREATE TABLE settle_audit.entries (
    chain text NOT NULL,
    number bigint NOT NULL,
    at timestamptz NOT NULL, -- this and the next seven repeat what `text` says, for searching; only `text` is hashed and believed
    kind text NOT NULL,
    actor text NOT NULL,
    agent text NOT NULL,
    seq bigint,
    tool text NOT NULL,
    decision_id text NOT NULL,
    outcome text NOT NULL,
    text text NOT NULL,
    prev text NOT NULL,
    hash text NOT NULL,
    PRIMARY KEY (chain, number)
);
CREATE UNIQUE INDEX entries_decision ON settle_audit.entries (chain, decision_id) WHERE kind = 'settled' AND decision_id <> '';
CREATE INDEX entries_begun ON settle_audit.entries (chain, decision_id) WHERE kind = 'settling' AND decision_id <> '';
CREATE INDEX entries_action ON settle_audit.entries (chain, agent, seq, number);
CREATE INDEX entries_agent ON settle_audit.entries (chain, agent, number); -- version 2: a page of an agent with very many entries

CREATE TABLE settle_audit.heads (chain text PRIMARY KEY, number bigint NOT NULL, hash text NOT NULL);

CREATE FUNCTION settle_audit.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit entries are never changed or removed' USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER entries_are_final BEFORE UPDATE OR DELETE OR TRUNCATE ON settle_audit.entries
    FOR EACH STATEMENT EXECUTE FUNCTION settle_audit.refuse_change();
ALTER TABLE settle_audit.entries ENABLE ALWAYS TRIGGER entries_are_final;

CREATE TABLE settle_audit.version (number integer NOT NULL);
INSERT INTO settle_audit.version VALUES (2);

REVOKE ALL ON SCHEMA settle_audit FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA settle_audit FROM PUBLIC;
