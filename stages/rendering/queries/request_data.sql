-- `data` and options of the requests behind these sends, and the contact that a copy is a copy for; `place` is the position in the arrays
-- given. A copy's send belongs to the request of the mail, whose own send has the request's id.
select w.place as "place!", r.payload -> 'data' as data, r.options as "options: Json<MailOptions>",
       p.contact_id as "to_contact_id?", s.id <> r.id as "is_other!"
from unnest($1::uuid[], $2::uuid[], $3::date[]) with ordinality as w (tenant_id, send_id, month, place)
join sends s on s.tenant_id = w.tenant_id and s.id = w.send_id and s.month = w.month
join requests r on r.tenant_id = s.tenant_id and r.id = s.request_id
left join sends p on p.tenant_id = s.tenant_id and p.id = r.id and p.month = s.month and s.id <> r.id and r.options ? 'copies'
where r.kind = 'transactional' or r.options is not null
