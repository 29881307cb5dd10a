-- Records an outcome, or changes it by a later report. Answers nothing when nothing changed. $1 tenant, $2 id for a new one, $3 source
-- system, $4 its event id, $5 address, $6 number, $7 contact, $8 by which key, $9 type, $10 premium, $11 value, $12 when: null for
-- now, or for the time of the first report. Served by the unique key.
insert into outcomes as o (tenant_id, id, source_system, source_event_id, contact_email, dot_number, contact_id, contact_key,
                           outcome_type, premium, value_cents, occurred_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, coalesce($12, now()))
on conflict (tenant_id, source_system, source_event_id) do update
set contact_email = excluded.contact_email, dot_number = excluded.dot_number,
    -- The contact that the credit was given by stays, as long as the keys do.
    contact_id = case when (o.contact_email, o.dot_number) is not distinct from (excluded.contact_email, excluded.dot_number)
                      then coalesce(o.contact_id, excluded.contact_id) else excluded.contact_id end,
    contact_key = case when (o.contact_email, o.dot_number) is not distinct from (excluded.contact_email, excluded.dot_number)
                       then coalesce(o.contact_key, excluded.contact_key) else excluded.contact_key end,
    outcome_type = excluded.outcome_type, premium = excluded.premium, value_cents = excluded.value_cents,
    occurred_at = coalesce($12, o.occurred_at), updated_at = now(), credit_due = now(),
    credit_reason = case when o.booked_type is null then 'first' else 'changed' end
where (o.contact_email, o.dot_number, o.outcome_type, o.premium, o.value_cents, o.occurred_at)
      is distinct from
      (excluded.contact_email, excluded.dot_number, excluded.outcome_type, excluded.premium, excluded.value_cents,
       coalesce($12, o.occurred_at))
   or o.contact_id is null and excluded.contact_id is not null
returning id, contact_id is not null as "contact_matched!"
