-- The rate limit of a key is a sliding minute: a row counts the requests that were admitted in two seconds, and the rows of the last
-- minute are added up. What a group of requests found is kept in the row, so that each of them can be told its number.
alter table rate_windows add column was integer not null default 0;     -- used before the last group
alter table rate_windows add column most integer;                       -- how many the two seconds may have, by the last group
