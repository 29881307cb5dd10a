-- Asks contacts to confirm their consent: the sweep mails those whose consent is pending and whose address is not suppressed. A contact
-- that was mailed within $3 hours, or $4 times in all, is left as it is, however often it is asked for. Answers whom it asks.
-- One that an import asked for and that waits for its first mail is mailed as a sign-up once it is asked for as one.
-- One that is asked for the first time starts with the mails that its address got before an erasure: the sweep holds it to the limits.
-- $1 tenant, $2 contacts, $5 whether an import asks; mails before an erasure: $6 contacts of now, $7 how many, $8 the time of the last.
with asked as (
    insert into confirmations (tenant_id, contact_id, due_at, is_bulk, mails, last_mail_at)
    select distinct $1::uuid, g.contact_id, now(), $5::boolean, coalesce(e.mails, 0), e.last_mail_at
    from recipient_eligibility($1, $2) g
    left join unnest($6::uuid[], $7::integer[], $8::timestamptz[]) as e (contact_id, mails, last_mail_at) on e.contact_id = g.contact_id
    where g.may_be_asked
    order by 2
    on conflict (tenant_id, contact_id) do update
    set state = 'pending', requested_at = now(), due_at = now(), reminders = 0, expires_at = null, is_bulk = excluded.is_bulk
    where confirmations.mails < $4
      and (confirmations.last_mail_at is null or confirmations.last_mail_at <= now() - make_interval(hours => $3))
      -- One that waits for its mail is left as it is; one that has expired waits for its end alone.
      and not (confirmations.state = 'pending' and confirmations.due_at <= now() and confirmations.is_bulk <= excluded.is_bulk
               and (confirmations.expires_at is null or confirmations.expires_at > now()))
    returning contact_id, mails, last_mail_at
)
select contact_id as "contact_id!" from asked
where mails < $4 and (last_mail_at is null or last_mail_at <= now() - make_interval(hours => $3))
