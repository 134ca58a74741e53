library ieee;
use ieee.std_logic_1164.all;

-- One wide word in, PARTS samples out, the one in the lowest bits first. It holds no data: the word stays until its last part is
-- taken.
entity lutetia_unpack is
    generic (BITS : positive := 1; PARTS : positive := 2);
    port (
        clk, rst : in std_logic;
        in_data : in std_logic_vector(BITS * PARTS - 1 downto 0);
        in_valid : in std_logic;
        in_ready : out std_logic;
        out_data : out std_logic_vector(BITS - 1 downto 0);
        out_valid : out std_logic;
        out_ready : in std_logic
    );
end entity;

architecture behaviour of lutetia_unpack is
    signal part : natural range 0 to PARTS - 1 := 0;
begin
    out_data <= in_data(BITS * part + BITS - 1 downto BITS * part);
    out_valid <= in_valid;
    in_ready <= out_ready when part = PARTS - 1 else '0';
    process (clk) begin
        if rising_edge(clk) then
            if rst = '1' then
                part <= 0;
            elsif in_valid = '1' and out_ready = '1' then
                if part = PARTS - 1 then
                    part <= 0;
                else
                    part <= part + 1;
                end if;
            end if;
        end if;
    end process;
end architecture;
