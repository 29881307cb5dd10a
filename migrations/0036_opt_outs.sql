-- When the recipient opted in himself, on his preferences page. Only that outweighs an opt-out: consent that the tenant states
-- (`consent_at`, by API or import) does not.
alter table contacts add column opted_in_at timestamptz;

-- Only a person's answer ends an enrollment. What a program wrote (RFC 3834) is nobody's.
drop trigger events_end_enrollments on events;
create trigger events_end_enrollments after insert on events
    for each row when (new.type = 'replied' and not coalesce((new.detail ->> 'automatic')::boolean, false))
    execute function check_answered_enrollments();
