-- The rows of one import, as read and checked. Goes with the transaction.
create temporary table import_rows (
    number bigint not null,                     -- of the row in the file
    address text not null,
    new_id uuid not null,                       -- of the contact, if the import creates it
    first_name text,
    last_name text,
    title text,
    phone text,
    company text,
    lifecycle_stage text,
    dot_number bigint,
    timezone text,
    locale text,
    fields jsonb not null,
    tags text,                                  -- names, separated by U+001F
    lists text,                                 -- likewise
    status text,                                -- `archived`: a new contact is, and a known one stays so; null: only what stops mail counts of the row
    unsubscribed boolean not null,
    pending boolean not null,
    suppression_reason text,
    suppression_scope text,                     -- null: that of the reason
    suppression_note text,
    suppression_expires_at timestamptz,
    consent_basis text,
    consent_at timestamptz,
    external_id text,
    contact_id uuid,                            -- of the contact: new_id at first, null where the row is skipped
    is_merged boolean not null default false,   -- its address is that of a contact that was merged into contact_id
    is_folded boolean not null default false,   -- another row of the same contact has the values that count
    changed boolean not null default false
) on commit drop
