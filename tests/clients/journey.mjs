// A contact is created and found again, and a refusal is told as such. Prints a JSON line for each.
const { connect } = await import(process.env.CLIENT);
const { POSTRIDER_API_URL: url, POSTRIDER_API_KEY: key, POSTRIDER_API_TENANT: product_tenant_id } = process.env;
const api = connect(url, key);
const say = (line) => console.log(JSON.stringify(line));

const created = await api.POST("/v1/contacts", { body: { product_tenant_id, email: "ann@example.com" } });
say({ created: created.data.contact_id });
const page = await api.GET("/v1/contacts", { params: { query: { product_tenant_id, limit: 1 } } });
say({ found: page.data.contacts.map((contact) => contact.contact_id) });
const refused = await api.POST("/v1/contacts", { body: { product_tenant_id, email: "nobody at all" } });
say({ refused: refused.error.error });
