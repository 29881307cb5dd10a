-- What sends are rendered from, by primary key: the recipient's merge data; `data` and options of the request behind the send; and the contact
-- that a copy is a copy for. `place` is the position in the arrays given; a send without a month is looked up for no request. A copy's send
-- belongs to the request of the mail, whose own send has the request's id.
select w.place as "place!",
       c.address, c.first_name, c.last_name, c.title, c.phone, c.company, c.dot_number,
       c.timezone, c.locale, c.lifecycle_stage, c.fields - (select keys from removed_keys(c.tenant_id)) as "fields!",
       q.data as "data?", q.options as "options?: Json<MailOptions>", q.to_contact_id as "to_contact_id?", coalesce(q.is_other, false) as "is_other!"
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[]) with ordinality as w (tenant_id, contact_id, send_id, month, place)
join contacts c on c.tenant_id = w.tenant_id and c.id = w.contact_id
left join lateral (
    select r.payload -> 'data' as data, r.options, p.contact_id as to_contact_id, s.id <> r.id as is_other
    -- In this order, whatever the planner thinks of young tables: else it reads all requests of the tenant for each send.
    from (
        select s.tenant_id, s.id, s.month, s.request_id from sends s
        where s.tenant_id = w.tenant_id and s.id = w.send_id and s.month = w.month
        offset 0
    ) s
    cross join lateral (
        select r.id, r.kind, r.payload, r.options from requests r where r.tenant_id = s.tenant_id and r.id = s.request_id offset 0
    ) r
    left join lateral (
        select p.contact_id from sends p
        where p.tenant_id = s.tenant_id and p.id = r.id and p.month = s.month and s.id <> r.id and r.options ? 'copies'
        offset 0
    ) p on true
    where r.kind = 'transactional' or r.options is not null
    offset 0
) q on true
where c.status <> 'erased'
