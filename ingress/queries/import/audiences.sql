-- The lists and tags that the rows name.
select array(select distinct r.list from import_rows r where r.list is not null),
       array(select distinct tag from import_rows r, unnest(string_to_array(r.tags, U&'\001F')) tag where r.tags is not null)
