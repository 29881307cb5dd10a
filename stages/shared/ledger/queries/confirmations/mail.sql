-- Decides over confirmations that are taken, in one statement: an expired one ends, one whose contact may not be asked any more is withdrawn,
-- and the others become a transactional request each, with the time when the sweep looks at them next.
-- $1 tenants, $2 contacts, $3 sends (each also the id of its request); the engine's own mails: $4 languages, $5 subjects, $6 HTML, $7 texts;
-- where the tenant says nothing: $8 reminders, $9 hours before one, $10 days before a link expires; $11 hours between two mails to one
-- address, $12 mails to one address in all.
-- A template of the tenant counts while it is a transactional one with the link in it. The mail prints nothing that the sign-up form
-- took but the address: a form is filled by anybody. Answers how many were mailed.
with taken as (
    select f.*, w.send_id as new_send, g.address, c.locale, g.may_be_asked,
           confirmation_state(f.state, f.expires_at, c.marketing_status) as shown_state,
           f.last_mail_at + make_interval(hours => $11) as not_before
    from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as w (tenant_id, contact_id, send_id)
    join confirmations f on f.tenant_id = w.tenant_id and f.contact_id = w.contact_id
    join contacts c on c.tenant_id = w.tenant_id and c.id = w.contact_id
    left join lateral recipient_eligibility(w.tenant_id, array[w.contact_id]) g on true
), decided as (
    select k.*, case when k.shown_state = 'pending' and k.may_be_asked is not true then 'withdrawn' else k.shown_state end as new_state,
           k.mails < $12 and (k.expires_at is null or k.reminders < coalesce(t.confirmation_reminders, $8)) as wants_mail,
           coalesce(t.confirmation_reminders, $8) as reminders_max,
           greatest(coalesce(t.confirmation_reminder_hours, $9), $11) as reminder_hours,
           now() + make_interval(days => coalesce(t.confirmation_days, $10)) as new_expiry,
           t.environment, t.org_name, s.id as sender_id, s.name as sender_name, p.id as template_id, p.content_id
    from taken k
    join tenants t on t.id = k.tenant_id
    join senders s on s.tenant_id = k.tenant_id and s.is_default
    left join lateral (
        select p.id, p.content_id
        from templates p join contents n on n.tenant_id = p.tenant_id and n.id = p.content_id
        where p.tenant_id = k.tenant_id and p.id = t.confirmation_template_id and p.status <> 'archived'
          and n.kind = 'transactional' and 'data.confirmation_url' = any (n.variables)
    ) p on true
), language as (
    select l.*, md5(concat_ws(' ', 'confirmation', l.subject, l.html, l.words))::uuid as content_id
    from unnest($4::text[], $5::text[], $6::text[], $7::text[]) with ordinality as l (tag, subject, html, words, place)
), mailed as (
    select d.*, coalesce(d.content_id, l.content_id) as mail_content, l.subject, l.html, l.words
    from decided d
    cross join lateral (
        select l.* from language l
        where l.tag = lower(split_part(replace(d.locale, '_', '-'), '-', 1)) or l.place = 1
        order by l.place desc limit 1
    ) l
    where d.new_state = 'pending' and d.wants_mail and coalesce(d.not_before, now()) <= now()
), content as (
    insert into contents (tenant_id, id, kind, subject, body_html, body_text, variables)
    select distinct m.tenant_id, m.mail_content, 'transactional', m.subject, m.html, m.words, array['data.confirmation_url']
    from mailed m where m.content_id is null
    on conflict do nothing
), request as (
    insert into requests (tenant_id, id, product, environment, kind, payload, options, announce_after)
    select m.tenant_id, m.new_send,
           coalesce((select l.product from tenant_links l where l.tenant_id = m.tenant_id order by l.created_at limit 1), 'postrider'),
           m.environment, 'transactional',
           jsonb_build_object(
               'send_id', m.new_send, 'address', m.address, 'template_id', coalesce(m.template_id, m.mail_content),
               'content_id', m.mail_content, 'sender_id', m.sender_id,
               'data', jsonb_build_object('organisation', coalesce(nullif(btrim(m.org_name), ''), m.sender_name),
                                          'is_reminder', m.expires_at is not null)),
           '{"asks_to_confirm": true, "no_open_tracking": true, "no_click_tracking": true}'::jsonb, now()
    from mailed m
), looked_at as (
    update confirmations f
    set state = d.new_state,
        mails = f.mails + (m.new_send is not null)::integer,
        last_mail_at = case when m.new_send is null then f.last_mail_at else now() end,
        send_id = coalesce(m.new_send, f.send_id),
        reminders = f.reminders + (m.new_send is not null and f.expires_at is not null)::integer,
        expires_at = coalesce(f.expires_at, case when m.new_send is not null or not d.wants_mail then d.new_expiry end),
        due_at = case
            when d.new_state <> 'pending' then null
            when m.new_send is null and d.wants_mail then d.not_before
            when m.new_send is not null and f.reminders + (f.expires_at is not null)::integer < d.reminders_max and f.mails + 1 < $12
                then least(now() + make_interval(hours => d.reminder_hours), coalesce(f.expires_at, d.new_expiry))
            else coalesce(f.expires_at, d.new_expiry)
        end
    from decided d
    left join mailed m on m.tenant_id = d.tenant_id and m.contact_id = d.contact_id
    where f.tenant_id = d.tenant_id and f.contact_id = d.contact_id
)
select count(*) as "mailed!" from mailed
