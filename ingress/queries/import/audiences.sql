-- The lists and tags that the rows name.
select array(select distinct list from import_rows r, unnest(string_to_array(r.lists, U&'\001F')) list where r.lists is not null),
       array(select distinct tag from import_rows r, unnest(string_to_array(r.tags, U&'\001F')) tag where r.tags is not null)
