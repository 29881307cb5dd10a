-- Which trace a piece of work was asked for in, where the caller had one taken (W3C Trace Context): so that what a sweep announces
-- from the ledger goes on in it. Nearly always empty: only what is traced has a row. Of ids and the caller's own marks, no personal
-- data. Kept for seven days, longer than a mail is tried for; a campaign that is scheduled further ahead starts a trace of its own.
create table traces (
    tenant_id uuid not null references tenants (id),
    work_id uuid not null,                      -- the request, the campaign, or the batch
    traceparent text not null check (length(traceparent) = 55),
    tracestate text check (length(tracestate) <= 512),
    kept_at timestamptz not null default now(),
    primary key (tenant_id, work_id)
);
create index traces_by_age on traces (kept_at);
select wall_off('traces');

-- The trace of the mail an event tells of: who is called hears of it.
alter table webhook_events add column traceparent text;
