-- What the retention sweep finds the starts of messages by that never came again.
create index message_starts_by_age on message_starts (started_at);
