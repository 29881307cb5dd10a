-- Messages that were handed out again, and how often a process has begun to handle each since it last finished with it. A row is
-- deleted when handling ends, well or not: one that stays belongs to a process that died with the message in hand.
create table message_starts (
    stream text not null,
    consumer text not null,
    sequence bigint not null,
    published_at timestamptz not null,          -- of the message: a stream that was made again counts from 1
    starts integer not null,
    started_at timestamptz not null default now(),
    primary key (stream, consumer, sequence)
);
grant select, insert, update, delete on message_starts to postrider_stages;
