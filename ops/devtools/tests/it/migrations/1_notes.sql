create table notes (text text not null);
