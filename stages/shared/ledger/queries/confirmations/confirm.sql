-- Confirms a contact's consent, if it still waits for that and nothing speaks against mailing the contact: the act is the consent, and the
-- proof is stored with what was stated before. Steps of sequences that wait for it are due. $1 tenant, $2 contact, whose row is locked, $3 proof, $4 send. Answers whether it did.
with confirmed as (
    update confirmations f
    set state = 'confirmed', confirmed_at = now(), due_at = null, proof = $3,
        sign_up = jsonb_strip_nulls(jsonb_build_object(
            'basis', c.consent_basis, 'at', c.consent_at, 'source', c.consent_source, 'description', c.consent_description,
            'evidence', c.consent_evidence))
    from contacts c
    cross join lateral recipient_eligibility($1, array[c.id]) g
    where f.tenant_id = $1 and f.contact_id = $2 and c.tenant_id = $1 and c.id = $2
      and confirmation_state(f.state, f.expires_at, c.marketing_status) = 'pending' and g.may_be_asked
    returning f.contact_id
), subscribed as (
    update contacts c
    set marketing_status = 'subscribed', opted_in_at = clock_timestamp(), consent_basis = 'double_opt_in', consent_at = now(),
        consent_source = 'confirmation_page', consent_description = 'confirmed by the link in the mail of send ' || $4::uuid,
        consent_evidence = $3, updated_at = now()
    from confirmed f
    where c.tenant_id = $1 and c.id = f.contact_id
), waiting as (
    -- A step that is being taken looks again within the hour: enrollments are locked before contacts, and here the contact is locked.
    select e.id from enrollments e cross join confirmed f
    where e.tenant_id = $1 and e.contact_id = f.contact_id and e.status = 'active' and e.held_by = 'no_consent'
    for no key update of e skip locked
), woken as (
    update enrollments e set next_action_at = now(), updated_at = now()
    from waiting w
    where e.tenant_id = $1 and e.id = w.id
), noticed as (
    insert into notices (tenant_id, id, type, contact_id, data)
    select $1, gen_random_uuid(), 'contact.confirmed', contact_id, jsonb_build_object('send_id', $4::uuid) from confirmed
)
select exists (select from confirmed) as "confirmed!"
