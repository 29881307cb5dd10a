-- A second DKIM key for each domain: Ed25519 (RFC 8463) beside RSA, under a selector of its own. Advised, not required: mail is
-- signed with it too once the last check has found it published, so that no receiver ever looks for a key that is not there.
alter table domains
    add column second_selector text,
    add column second_private bytea,            -- PKCS#8, encrypted as dkim_private is
    add column second_public text,
    add column second_published boolean not null default false,
    add constraint domains_second_key_is_whole check (num_nulls(second_selector, second_private, second_public) in (0, 3)),
    add constraint domains_published_second_key check (not second_published or second_selector is not null);
