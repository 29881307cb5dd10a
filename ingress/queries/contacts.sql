-- Contacts by id, newest first: each with its audiences, by name, and the gravest live suppression of its address.
-- A subquery in the list costs less to begin than a join, and nothing is written out for callers here: most who ask want one contact.
-- $1 tenant, $2 ids.
select c.id, c.address, c.external_id, c.first_name, c.last_name, c.title, c.phone, c.company, c.dot_number,
       c.fields - (select keys from removed_keys($1)) as "fields!", c.timezone, c.locale, c.lifecycle_stage, c.status, c.marketing_status, c.source,
       c.consent_basis, c.consent_at, c.consent_source, c.consent_description, c.consent_evidence as "consent_evidence?: Json<SignUpEvidence>", c.created_at, c.updated_at,
       array(select m.id from contacts m where m.tenant_id = $1 and m.merged_into = c.id order by m.id) as "merged!",
       array(
           select jsonb_build_object('id', a.id, 'kind', a.kind, 'name', a.name)
           from audience_members m
           join audiences a on a.tenant_id = m.tenant_id and a.id = m.audience_id and a.deleted_at is null
           where m.tenant_id = $1 and m.contact_id = c.id
           order by a.name
       ) as "memberships!: Vec<Json<ContactMembership>>",
       (
           select jsonb_build_object('reason', s.reason, 'scope', s.scope, 'since', s.created_at)
           from suppressions s
           where s.tenant_id = $1 and s.address = c.address and is_in_force(s.expires_at)
           order by (s.scope = 'all') desc,
                    array_position(array['hard_bounce', 'complaint', 'invalid', 'manual', 'import', 'unsubscribe'], s.reason)
           limit 1
       ) as "suppression?: Json<ContactSuppression>",
       (
           select jsonb_build_object(
               'state', confirmation_state(f.state, f.expires_at, c.marketing_status), 'requested_at', f.requested_at,
               -- A mail without a send was to the person who was erased.
               'sent_at', case when f.send_id is not null then f.last_mail_at end,
               'send_id', f.send_id, 'reminders', f.reminders, 'expires_at', f.expires_at, 'confirmed_at', f.confirmed_at)
           from confirmations f where f.tenant_id = $1 and f.contact_id = c.id
       ) as "confirmation?: Json<ContactConfirmation>"
from contacts c
where c.tenant_id = $1 and c.status <> 'erased' and c.id = any ($2)
order by c.created_at desc, c.id desc
